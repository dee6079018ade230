"""``diff``: compares two files tensor by tensor, in pieces of bounded size."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tensorizer_ops._base.memory import as_bytes
from tensorizer_ops._base.tables import name_text
from tensorizer_ops._cli.options import reading, refuse_stream, without_useless_key
from tensorizer_ops._cli.parsers import DIFFERENT
from tensorizer_ops._front.load_save import load_slices

# Bytes that are loaded of each file at a time.
_PIECE = 64 << 20
# Elements that are compared at a time, as float64.
_ELEMENTS = 1 << 20
_INTEGERS = {
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
}
_LOWEST = -(1 << 63)  # of int64


class _Stored(NamedTuple):
    """The index entry of one tensor."""

    name: str
    dtype: str  # torch's name
    shape: tuple[int, ...]
    memory_size: int


Index = dict[str, _Stored]
Piece = tuple[slice, ...]


@dataclass
class _Difference:
    """How two tensors of one name differ, as far as their values are compared."""

    same: bool = True
    largest: float | int | None = None

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        for a, b in zip(
            x.reshape(-1).split(_ELEMENTS), y.reshape(-1).split(_ELEMENTS), strict=True
        ):
            if _same_bits(a, b):
                continue
            self.same = False
            apart = _largest(a, b)
            if apart is None or (self.largest is not None and math.isnan(self.largest)):
                continue
            if self.largest is None or math.isnan(apart) or apart > self.largest:
                self.largest = apart


def diff(given: Namespace) -> int:
    for uri in (given.a, given.b):
        refuse_stream(uri, "diff reads it several times")
    options = reading(given)
    sides = [(given.a, options), (given.b, {**options, **dict(given.target_options)})]
    sides = [(uri, without_useless_key(uri, chosen)) for uri, chosen in sides]
    readers = [torch.classes.tensorizer.Reader(uri, chosen) for uri, chosen in sides]
    a, b = map(_index, readers)
    found: list[dict[str, object]] = []
    for name, difference in _compare(readers, a, b, given.threads):
        found.append({"name": name, **difference})
        if not given.json and not given.quiet:
            print(_line(found[-1]), flush=True)
    total = len(a.keys() | b.keys())
    if given.json:
        print(json.dumps({"tensors": total, "differences": [_as_json(one) for one in found]}))
    elif not given.quiet:
        print(f"{len(found)} of {total} tensors differ" if found else f"all {total} tensors agree")
    return DIFFERENT if found else 0


def _index(reader: Any) -> Index:
    """Return the tensors of a file, by name: of that which the values are read from."""
    internals = torch.classes.tensorizer._Internals(reader)
    sizes = zip(reader.names(), internals.list().memory_sizes, strict=True)
    return {
        name: _Stored(name, internals.type_name(name), tuple(reader.shape(name)), size)
        for name, size in sizes
    }


def _compare(
    readers: list[Any], a: Index, b: Index, threads: int
) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the names of tensors that differ, and how."""
    for batch in _batches(a, b):
        both = {name: piece for name, piece in batch if piece is not None}
        values = [load_slices(reader, both, threads=threads) for reader in readers]
        for name, piece in batch:
            x, y = a.get(name), b.get(name)
            if x is None or y is None:
                yield name, {"only_in": "A" if y is None else "B"}
            elif x.shape != y.shape:
                yield name, {"shape": [x.shape, y.shape]}
            else:
                parts = (
                    _values(readers, x, y, threads)
                    if piece is None
                    else [(values[0][name], values[1][name])]
                )
                values_differ = _Difference()
                for part in parts:
                    values_differ.add(*part)
                difference: dict[str, object] = {}
                if x.dtype != y.dtype:
                    difference["dtype"] = [x.dtype, y.dtype]
                if not values_differ.same:
                    difference["largest_difference"] = values_differ.largest
                if difference:
                    yield name, difference


def _batches(a: Index, b: Index) -> Iterator[list[tuple[str, Piece | None]]]:
    """Yield all names in batches, with () for tensors to load whole, together with the others."""
    batch: list[tuple[str, Piece | None]] = []
    size = 0
    for name in [*a, *(name for name in b if name not in a)]:
        x, y = a.get(name), b.get(name)
        whole = 0
        if x is not None and y is not None and x.shape == y.shape:
            whole = max(x.memory_size, y.memory_size)
            batch.append((name, () if whole <= _PIECE else None))
        else:
            batch.append((name, None))
        size += min(whole, _PIECE)
        if size >= _PIECE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _values(
    readers: list[Any], a: _Stored, b: _Stored, threads: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the values of a tensor that is too large to load in whole, piece by piece."""
    for piece in _pieces(a.shape, max(a.memory_size, b.memory_size)):
        x, y = (load_slices(reader, {a.name: piece}, threads=threads)[a.name] for reader in readers)
        yield x, y


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
    return a.dtype == b.dtype and torch.equal(as_bytes(a), as_bytes(b))


def _largest(a: torch.Tensor, b: torch.Tensor) -> float | int | None:
    """Return the largest difference of two elements; None for elements that are no numbers.

    It is NaN if an element is NaN on one side only, and exact for integers.
    """
    if a.dtype == b.dtype and a.dtype in _INTEGERS:
        return _largest_of_integers(a, b)
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    try:
        x, y = a.to(wide), b.to(wide)
    except (NotImplementedError, RuntimeError):  # bits, and floats of less than a byte
        return None
    apart = (x - y).abs()
    apart.masked_fill_((x == y) | (x.isnan() & y.isnan()), 0)
    return float(apart.max()) if apart.numel() else 0.0


def _largest_of_integers(a: torch.Tensor, b: torch.Tensor) -> int:
    x, y = a.to(torch.int64), b.to(torch.int64)
    if a.dtype == torch.uint64:  # whose order is that of int64 with the other sign
        x, y = x ^ _LOWEST, y ^ _LOWEST
    # Differences wrap around, and are right as unsigned numbers.
    apart = torch.where(x > y, x - y, y - x)
    return int((apart ^ _LOWEST).max()) - _LOWEST


def _as_json(found: dict[str, object]) -> dict[str, object]:
    """Return a difference with what JSON has no number for as a string: "nan", "inf"."""
    largest = found.get("largest_difference")
    finite = not isinstance(largest, float) or math.isfinite(largest)
    return found if finite else {**found, "largest_difference": str(largest)}


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
            if largest is None or (largest == 0 and "dtype" not in found):
                parts.append("different bits" + " of equal values" * (largest == 0))
            else:
                shown = largest if isinstance(largest, int) else f"{largest:g}"
                parts.append(f"largest difference {shown}")
        what = "; ".join(parts)
    return f"{name_text(found['name'])}: {what}"
