"""The ops as Dynamo traces them: calls of ``load_tensors``, ``load_slices`` and ``save_tensors``.

A graph cannot contain a dict of tensors, and the content of a file is a constant while a program is
traced. So the names in the file become an argument of ``load_tensors``, and the types and shapes
become its argument ``traced``: the call fails if the file has different ones when it runs, or more
tensors where all are loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.slices import Slices, resolve, without

Options = Mapping[str, str] | None


def names_now(uri: str, options: Options) -> list[str]:
    """Return the names in the file, which are a constant of the traced program."""
    reader = torch.classes.tensorizer.Reader(uri, _plain(options))
    # Raises for files and options that cannot be traced.
    torch.classes.tensorizer._Internals(reader).traced_version()
    return list(reader.names())


def shapes_now(
    uri: str, names: Sequence[str], dtype: torch.dtype | None, are_all: bool, options: Options
) -> list[str]:
    """Return the types and shapes in the file in the form of ``traced``: constants as well."""
    reader = torch.classes.tensorizer.Reader(uri, _plain(options))
    return list(torch.classes.tensorizer._Internals(reader).trace(list(names), dtype, are_all))


def slices_now(
    uri: str, names: Sequence[str], slices: Slices, options: Options
) -> tuple[list[int], list[int], list[int], list[int], list[int], list[tuple[int, ...]]]:
    """Return the slices for the shapes in the file: constants as well."""
    reader = torch.classes.tensorizer.Reader(uri, _plain(options))
    torch.classes.tensorizer._Internals(reader).traced_version()
    # A plain tuple: the compiler of torch 2.11 cannot unpack a named one that is a constant.
    return resolve(names, slices, reader.shape)[:]


def _plain(options: Options) -> dict[str, str] | None:
    return None if options is None else dict(options)


def names(uri: str, *, options: Options = None) -> list[str]:
    return names_now(uri, options)


def load_tensors(
    uri: str,
    names: Sequence[str],
    *,
    dtype: torch.dtype | None = None,
    threads: int | None = None,
    options: Options = None,
    are_all: bool = False,
    **how: Any,
) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = torch.ops.tensorizer.load_tensors(
        uri,
        list(names),
        dtype=dtype,
        threads=threads or None,
        options=_plain(options),
        traced=shapes_now(uri, names, dtype, are_all, options),
        **how,
    )
    return tensors


def load_slices(
    uri: str,
    names: Sequence[str],
    tensors: Sequence[int],
    dims: Sequence[int],
    starts: Sequence[int],
    lengths: Sequence[int],
    steps: Sequence[int] | None = None,
    *,
    dtype: torch.dtype | None = None,
    threads: int | None = None,
    options: Options = None,
    are_all: bool = False,
    **how: Any,
) -> list[torch.Tensor]:
    loaded: list[torch.Tensor] = torch.ops.tensorizer.load_slices(
        uri,
        list(names),
        tensors,
        dims,
        starts,
        lengths,
        steps,
        dtype=dtype,
        threads=threads or None,
        options=_plain(options),
        traced=shapes_now(uri, names, dtype, are_all, options),
        **how,
    )
    return loaded


def load(
    uri: str,
    *,
    names: Sequence[str] | None = None,
    slices: Slices | None = None,
    options: Options = None,
    **how: Any,
) -> dict[str, torch.Tensor]:
    known = names_now(uri, options) if names is None else list(names)
    how |= {"options": options, "are_all": names is None}
    if slices is None:
        return dict(zip(known, load_tensors(uri, known, **how), strict=True))
    tensors, dims, starts, lengths, steps, dropped = slices_now(uri, known, slices, options)
    loaded = load_slices(uri, known, tensors, dims, starts, lengths, steps, **how)
    return dict(zip(known, without(loaded, dropped), strict=True))


def refuse_subclasses(names: Iterable[str], tensors: Iterable[torch.Tensor]) -> None:
    """Raise for a tensor that wraps others: a graph would save each of these under its name."""
    for name, tensor in zip(names, tensors, strict=True):
        if hasattr(type(tensor), "__tensor_flatten__"):
            raise errors.InvalidArgument(
                f"tensor {name!r} cannot be saved in a compiled graph: it is a tensor subclass; "
                "save the tensors in it"
            )


def save(
    uri: str,
    tensors: Mapping[str, torch.Tensor],
    *,
    hashes: str = "chunked",
    threads: int = 0,
    options: Options = None,
    metadata: Options = None,
) -> None:
    refuse_subclasses(tensors.keys(), tensors.values())
    torch.ops.tensorizer.save_tensors(
        uri,
        list(tensors.keys()),
        list(tensors.values()),
        hashes=hashes,
        threads=threads or None,
        options=_plain(options),
        metadata=_plain(metadata),
    )
