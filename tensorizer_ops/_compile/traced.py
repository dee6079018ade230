"""The ops as a compiler sees them: each in terms of the two that a graph can hold.

A dict of tensors cannot cross into a graph, and what a file holds is a constant while a program is
traced. Both go into the graph as arguments of ``load_tensors``: the names, and in ``traced`` the
types and shapes, so that the call fails when the file is another one by the time it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

Options = Mapping[str, str] | None


def names_now(uri: str, options: Options) -> list[str]:
    """The names in the file: a constant of the program that is traced."""
    reader = torch.classes.tensorizer.Reader(uri, _plain(options))
    reader._traced_version()  # refuses what cannot be traced
    return list(reader.names())


def shapes_now(
    uri: str, names: Sequence[str], dtype: torch.dtype | None, options: Options
) -> list[str]:
    """Types and shapes in the file, as ``traced`` takes them: constants as well."""
    reader = torch.classes.tensorizer.Reader(uri, _plain(options))
    return list(reader._trace(list(names), dtype))


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
    **how: Any,
) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = torch.ops.tensorizer.load_tensors(
        uri,
        list(names),
        dtype=dtype,
        threads=threads or None,
        options=_plain(options),
        traced=shapes_now(uri, names, dtype, options),
        **how,
    )
    return tensors


def load(
    uri: str, *, names: Sequence[str] | None = None, options: Options = None, **how: Any
) -> dict[str, torch.Tensor]:
    known = names_now(uri, options) if names is None else list(names)
    return dict(zip(known, load_tensors(uri, known, options=options, **how), strict=True))


def save(
    uri: str,
    tensors: Mapping[str, torch.Tensor],
    *,
    hashes: str = "all",
    threads: int = 0,
    options: Options = None,
) -> None:
    torch.ops.tensorizer.save_tensors(
        uri,
        list(tensors.keys()),
        list(tensors.values()),
        hashes=hashes,
        threads=threads or None,
        options=_plain(options),
    )
