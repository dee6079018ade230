"""``diff``: compares two files tensor by tensor, in pieces of bounded size."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import torch

from tensorizer_ops._cli.options import reading
from tensorizer_ops._cli.output import safe
from tensorizer_ops._cli.parsers import DIFFERENT
from tensorizer_ops._inspection import File, StoredTensor
from tensorizer_ops._load_save import load_slices

# Bytes that are loaded of each tensor at a time.
_PIECE = 64 << 20
# Elements that are compared at a time, as float64.
_ELEMENTS = 1 << 20


def diff(given: Namespace) -> int:
    options = reading(given)
    sides = [(given.a, options), (given.b, {**options, **dict(given.target_option)})]
    a, b = ({t.name: t for t in File(uri, chosen).index()} for uri, chosen in sides)
    readers = [torch.classes.tensorizer.Reader(uri, chosen) for uri, chosen in sides]
    found: list[dict[str, object]] = []
    for name in [*a, *(name for name in b if name not in a)]:
        difference = _compare(readers, a.get(name), b.get(name), given.threads)
        if difference is None:
            continue
        found.append({"name": name, **difference})
        if not given.json and not given.quiet:
            print(_line(found[-1]), flush=True)
    total = len(a.keys() | b.keys())
    if given.json:
        print(json.dumps({"tensors": total, "differences": found}))
    elif not given.quiet:
        print(f"{len(found)} of {total} tensors differ" if found else f"all {total} tensors agree")
    return DIFFERENT if found else 0


def _compare(
    readers: list[Any], a: StoredTensor | None, b: StoredTensor | None, threads: int
) -> dict[str, object] | None:
    """Return how two tensors of one name differ; None if they are the same."""
    if a is None or b is None:
        return {"only_in": "A" if b is None else "B"}
    if a.shape != b.shape:
        return {"shape": [a.shape, b.shape]}
    difference: dict[str, object] = {"dtype": [a.dtype, b.dtype]} if a.dtype != b.dtype else {}
    largest: float | None = None
    same = True
    for piece in _pieces(a.shape, max(a.memory_size, b.memory_size)):
        x, y = (load_slices(reader, {a.name: piece}, threads=threads)[a.name] for reader in readers)
        for part, other in zip(
            x.reshape(-1).split(_ELEMENTS), y.reshape(-1).split(_ELEMENTS), strict=True
        ):
            if _same_bits(part, other):
                continue
            same = False
            apart = _largest(part, other)
            if apart is not None and not (largest is not None and math.isnan(largest)):
                largest = apart if largest is None or math.isnan(apart) else max(largest, apart)
    if not same:
        difference["largest_difference"] = largest
    return difference or None


def _pieces(shape: tuple[int, ...], size: int) -> Iterator[tuple[slice, ...]]:
    """Cut a tensor into slices of rows; a row that is too large into slices of itself."""
    if size <= _PIECE:
        yield ()
        return
    row = max(1, size // shape[0])  # elements may be smaller than a byte
    rows = max(1, _PIECE // row)
    for begin in range(0, shape[0], rows):
        # More than one row is small enough already.
        for inner in _pieces(shape[1:], row * rows):
            yield (slice(begin, begin + rows), *inner)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _largest(a: torch.Tensor, b: torch.Tensor) -> float | None:
    """Return the largest difference of two elements; None for elements that are no numbers.

    It is NaN if an element is NaN on one side only.
    """
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    try:
        x, y = a.to(wide), b.to(wide)
    except (NotImplementedError, RuntimeError):  # bits, and floats of less than a byte
        return None
    apart = (x - y).abs()
    apart.masked_fill_((x == y) | (x.isnan() & y.isnan()), 0)
    return float(apart.max()) if apart.numel() else 0.0


def _line(found: dict[str, Any]) -> str:
    if "only_in" in found:
        what = f"only in {found['only_in']}"
    elif "shape" in found:
        what = "shape " + " and ".join(str(list(shape)) for shape in found["shape"])
    else:
        parts = []
        if "dtype" in found:
            parts.append("dtype " + " and ".join(map(str, found["dtype"])))
        if "largest_difference" in found:
            largest = found["largest_difference"]
            parts.append("different bits" if largest is None else f"largest difference {largest:g}")
        what = "; ".join(parts)
    return f"{safe(found['name'])}: {what}"
