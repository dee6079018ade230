"""Which elements of a tensor the parts of it have that were compared."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch

from tensorizer_ops._base.memory import span


class Layout(NamedTuple):
    """Where the bytes of a tensor are: runs of ``run`` bytes, and others at these distances."""

    begin: int  # an address
    itemsize: int
    run: int
    dims: tuple[tuple[int, int], ...]  # sizes and distances in bytes, the smallest distance first

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """Return the layout of a tensor with memory. Elements that are the same count once."""
        where = span(tensor)
        assert where is not None
        size = tensor.itemsize
        found = sorted(
            (stride * size, length)
            for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
            if length > 1 and stride > 0
        )
        run = size
        dims: list[tuple[int, int]] = []
        for distance, length in found:
            if not dims and distance == run:
                run *= length
            else:
                dims.append((length, distance))
        return cls(where.begin, size, run, tuple(dims))

    @property
    def end(self) -> int:
        return self.begin + self.run + sum((size - 1) * step for size, step in self.dims)

    def overlaps_itself(self) -> bool:
        """Return whether elements may have bytes in common."""
        extent = self.run
        for size, step in self.dims:
            if step < extent:
                return True
            extent += (size - 1) * step
        return False

    def view_of(self, mask: torch.Tensor, origin: int, unit: int) -> torch.Tensor:
        """Return what this is of a mask with an element for each ``unit`` bytes from ``origin``."""
        shape = [self.run // unit, *(size for size, _ in self.dims)]
        strides = [1, *(step // unit for _, step in self.dims)]
        return mask.as_strided(shape, strides, (self.begin - origin) // unit)


def uncovered(whole: Layout, parts: Iterable[Layout]) -> int:
    """Return how many elements of a tensor are in none of these parts of its memory."""
    if whole in parts:
        return 0
    # Of a part whose elements overlap, it is not known which bytes it has.
    exact = [part for part in parts if not part.overlaps_itself()]
    every = [whole, *exact]
    origin = min(layout.begin for layout in every)
    numbers = [number for layout in every for number in _numbers(layout, origin)]
    unit = math.gcd(*numbers)
    size = (max(each.end for each in every) - origin) // unit
    mask = torch.zeros(size, dtype=torch.bool, device="cpu")
    for part in exact:
        part.view_of(mask, origin, unit).fill_(True)
    missing = int((~whole.view_of(mask, origin, unit)).sum())
    return -(-missing * unit // whole.itemsize)


def _numbers(layout: Layout, origin: int) -> list[int]:
    return [layout.begin - origin, layout.run, *(step for _, step in layout.dims)]
