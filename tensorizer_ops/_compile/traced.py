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

from tensorizer_ops import _core, errors
from tensorizer_ops._base.options import as_pairs
from tensorizer_ops._base.slices import Slices, resolve, without

Options = Mapping[str, str] | None


def names_now(uri: str, options: Options) -> list[str]:
    """Return the names in the file, which are a constant of the traced program."""
    reader = torch.classes.tensorizer.Reader(uri, options)
    torch.classes.tensorizer._Internals(reader).check_traceable()
    return list(reader.names())


def seen_now(
    uri: str,
    names: Sequence[str] | None,
    slices: Slices | None,
    dtype: torch.dtype | None,
    options: Options,
) -> tuple[Any, ...]:
    """Return what the program keeps of the file: constants, all from one opening of it.

    These are the names, the argument ``traced``, and what ``resolve()`` returns for the slices.
    """
    reader = torch.classes.tensorizer.Reader(uri, options)
    given = None if names is None else list(names)
    known, shapes = torch.classes.tensorizer._Internals(reader).trace(given, dtype)
    resolved = resolve(known, slices or {}, reader.shape)
    # A plain tuple: the compiler of torch 2.11 cannot unpack a named one that is a constant.
    return (list(known), list(shapes), *resolved)


def refuse_secrets(uri: str, options: Options) -> None:
    """Refuse secrets before the call enters the graph: Dynamo prints a call that fails there."""
    _core.refuse_traced_secrets(uri, as_pairs(options))


def plain(options: Options) -> dict[str, str] | None:
    return None if options is None else dict(options)


def names(uri: str, *, options: Options = None) -> list[str]:
    return names_now(uri, options)


def verify(uri: str, *, options: Options = None, **how: Any) -> None:
    refuse_secrets(uri, options)
    torch.ops.tensorizer.verify(uri, options=options, **how)


def load_tensors(
    uri: str,
    names: Sequence[str],
    *,
    dtype: torch.dtype | None = None,
    threads: int | None = None,
    options: Options = None,
    traced: Sequence[str] | None = None,
    **how: Any,
) -> list[torch.Tensor]:
    if traced is None:
        traced = seen_now(uri, names, None, dtype, options)[1]
    tensors: list[torch.Tensor] = torch.ops.tensorizer.load_tensors(
        uri,
        list(names),
        dtype=dtype,
        threads=threads or None,
        options=options,
        traced=traced,
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
    traced: Sequence[str] | None = None,
    **how: Any,
) -> list[torch.Tensor]:
    if traced is None:
        traced = seen_now(uri, names, None, dtype, options)[1]
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
        options=options,
        traced=traced,
        **how,
    )
    return loaded


def load(
    uri: str,
    *,
    names: Sequence[str] | None = None,
    slices: Slices | None = None,
    dtype: torch.dtype | None = None,
    options: Options = None,
    **how: Any,
) -> dict[str, torch.Tensor]:
    slices = None if slices is None else dict(slices)  # which guards the names of the tensors
    known, traced, *sliced, dropped = seen_now(uri, names, slices, dtype, options)
    how |= {"dtype": dtype, "options": options, "traced": traced}
    if slices is None:
        return dict(zip(known, load_tensors(uri, known, **how), strict=True))
    loaded = load_slices(uri, known, *sliced, **how)
    return dict(zip(known, without(loaded, dropped), strict=True))


def load_into(
    uri: str,
    names: Sequence[str],
    out: Sequence[torch.Tensor],
    *,
    options: Options = None,
    **how: Any,
) -> None:
    refuse_secrets(uri, options)
    torch.ops.tensorizer.load_into(uri, names, out, options=options, **how)


def refuse_subclasses(names: Iterable[str], tensors: Iterable[torch.Tensor]) -> None:
    """Raise for a tensor that wraps others: a graph would save each of these under its name."""
    for name, tensor in zip(names, tensors, strict=True):
        if hasattr(type(tensor), "__tensor_flatten__"):
            raise errors.InvalidArgument(
                f"tensor {name!r} cannot be saved in a compiled graph: it is a tensor subclass; "
                "save the tensors in it"
            )


def save_tensors(
    uri: str,
    names: Sequence[str],
    tensors: Sequence[torch.Tensor],
    *,
    options: Options = None,
    **how: Any,
) -> None:
    refuse_secrets(uri, options)
    refuse_subclasses(names, tensors)
    torch.ops.tensorizer.save_tensors(uri, names, tensors, options=options, **how)


def save(uri: str, tensors: Mapping[str, torch.Tensor], *, threads: int = 0, **how: Any) -> None:
    names, values = list(tensors.keys()), list(tensors.values())
    save_tensors(uri, names, values, threads=threads or None, **how)
