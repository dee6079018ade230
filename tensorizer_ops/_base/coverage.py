"""Which elements of a tensor the parts of it have that were compared."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
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

    def has(self, other: Layout) -> bool:
        """Return whether the addresses of another tensor are between those of this one."""
        return self.begin <= other.begin and other.end <= self.end

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


def overlap(one: Layout, other: Layout) -> bool:
    """Return whether two tensors have bytes in common."""
    if one.end <= other.begin or other.end <= one.begin:
        return False
    mask = Mask([one, other])
    mask.of(one).fill_(True)
    return bool(mask.of(other).any())


def uncovered(whole: Layout, parts: Collection[Layout]) -> int:
    """Return how many elements of a tensor are in none of these parts of its memory."""
    if whole in parts or any(not part.dims and part.has(whole) for part in parts):
        return 0
    # Others have none of its elements, and the addresses between may be too many for a mask.
    near = [part for part in parts if part.begin < whole.end and whole.begin < part.end]
    mask = Mask([whole, *near])
    for part in near:
        mask.add(part)
    missing = int((~mask.of(whole)).sum())
    return -(-missing * mask.unit // whole.itemsize)


class Mask:
    """Which bytes parts of one range of memory have."""

    def __init__(self, layouts: Sequence[Layout], *, by_element: bool = False) -> None:
        """Make one that has room for these, and none of their bytes.

        With ``by_element``, :meth:`elements_of` takes tensors of these layouts.
        """
        self._origin = min(layout.begin for layout in layouts)
        numbers = [number for each in layouts for number in _numbers(each, self._origin)]
        if by_element:
            numbers += [each.itemsize for each in layouts]
        self.unit = math.gcd(*numbers)  # the bytes that have one element of the mask
        size = (max(each.end for each in layouts) - self._origin) // self.unit
        self._mask = torch.zeros(size, dtype=torch.bool, device="cpu")

    def add(self, part: Layout) -> None:
        """Add the bytes of a part, unless its elements overlap: it is not known which it has."""
        if not part.overlaps_itself():
            self.of(part).fill_(True)

    def of(self, layout: Layout) -> torch.Tensor:
        """Return what is in the memory of a layout."""
        return layout.view_of(self._mask, self._origin, self.unit)

    def elements_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return which elements of a tensor, in its shape, have all of their bytes in the mask."""
        size = tensor.itemsize // self.unit
        begin = (Layout.of(tensor).begin - self._origin) // self.unit
        strides = [stride * size for stride in tensor.stride()]
        return self._mask.as_strided((*tensor.shape, size), (*strides, 1), begin).all(-1)


def _numbers(layout: Layout, origin: int) -> list[int]:
    return [layout.begin - origin, layout.run, *(step for _, step in layout.dims)]
