"""The elements that differ between two versions of a model, and weights that take them in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._front.reader import Reader
from tensorizer_ops._front.weight import Stored, Weight
from tensorizer_ops._front.writer import Writer

# With a larger part of the model, loading layers anew takes less time.
_MOST = 0.1
# What the names of tensors end with that have the places of elements, and their bits then and now.
_PLACES, _OLD, _NEW = "/places", "/old", "/new"
# Integers of the size of an element.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class NotInPlace(Exception):
    """The elements of two versions cannot be exchanged in place."""


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if (integers := _INTEGERS.get(tensor.dtype.itemsize)) is None:
        raise NotInPlace(f"elements of {tensor.dtype} have no integers of their size")
    return tensor.view(integers)


def write_changes(older: Path, newer: Path, target: Path) -> None:
    """Write what differs between two files with tensors of the same names and shapes.

    Raises:
        NotInPlace: too much differs.
    """
    all_elements = changed = 0
    with Reader(older) as old, Reader(newer) as new, Writer(target, hashes="none") as writer:
        if list(old) != list(new):
            raise NotInPlace("the versions have different tensors")
        for name in new:
            if (old.shape(name), old.dtype(name)) != (new.shape(name), new.dtype(name)):
                raise NotInPlace(f"{quoted(name)} has another shape or dtype")
            before, now = (_bits(reader[name].reshape(-1)) for reader in (old, new))
            places = (before != now).nonzero().squeeze(1)
            all_elements += now.numel()
            changed += places.numel()
            if places.numel():
                small = now.numel() <= torch.iinfo(torch.int32).max
                writer[name + _PLACES] = places.to(torch.int32) if small else places
                writer[name + _OLD], writer[name + _NEW] = before[places], now[places]
        if changed > _MOST * all_elements:
            raise NotInPlace(f"{changed} of {all_elements} elements differ")


def changed_weights(changes: Path, newer: Path) -> Iterator[tuple[str, ChangedWeight]]:
    """Return the names of the newer version's tensors, and these, whose changes are known.

    Loaders get those without changes as well: what they do may depend on all that they get.
    """
    found, model = Reader(changes), Reader(newer)
    return ((name, ChangedWeight(_Changes(found, model, name))) for name in model)


class _Changes(Stored):
    def __init__(self, changes: Reader, model: Reader, name: str) -> None:
        super().__init__(model, name)
        self._changes = changes
        self.is_changed = name + _PLACES in changes

    def load_changes(self, device: torch.device) -> list[torch.Tensor]:
        keys = [self.name + end for end in (_PLACES, _OLD, _NEW)]
        loaded = self._changes.load(keys, device=device)
        return [loaded[key] for key in keys]


class ChangedWeight(Weight):
    """A tensor of the newer version, or a part of it, whose changes are known."""

    stored: _Changes

    def put_changes(self, target: torch.Tensor) -> None:
        """Do as ``target.copy_`` from this one to where the older version is.

        Raises:
            NotInPlace: an element of the target is not that of the older version.
        """
        if (target.shape, target.dtype) != (self.shape, self.dtype):
            target.copy_(self)
            return
        if not self.stored.is_changed:
            return
        rest, old, new = self.stored.load_changes(target.device)
        where: list[torch.Tensor] = []  # by dimension of the target
        stored = self.stored
        for part, whole, stride in zip(self.which, stored.everything, stored.strides, strict=True):
            place, rest = rest // stride, rest % stride
            if part == whole:
                where.append(place)
                continue
            if isinstance(part, range):
                place -= part.start
                inside = (place >= 0) & (place % part.step == 0)
                place //= part.step
                inside &= place < len(part)
                where.append(place)
            else:
                inside = place == part
            rest, old, new = rest[inside], old[inside], new[inside]
            where = [places[inside] for places in where]
        bits = _bits(target)
        found = bits[tuple(where)] if where else bits.expand(len(old))
        if torch.equal(found, new):  # a part may be copied twice
            return
        if not torch.equal(found, old):
            raise NotInPlace(f"{quoted(self.stored.name)} is not what the older version has")
        if where:
            bits[tuple(where)] = new
        elif len(new):
            bits.copy_(new[0])
