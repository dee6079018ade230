"""Divides the bytes of a model among ranks.

Every rank computes the same shares from the same index, so nothing has to be sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Extent(NamedTuple):
    """One tensor, as far as it can be divided."""

    elements: int
    itemsize: int  # of an element in the file
    step: int  # elements: a cut is a multiple of it

    @property
    def size(self) -> int:
        return self.elements * self.itemsize


class Range(NamedTuple):
    """Elements of one tensor, in row-major order."""

    tensor: int  # its place among the tensors
    start: int
    length: int


def divide(extents: Sequence[Extent], ranks: int) -> list[list[Range]]:
    """Return a share for each rank: ranges that follow one another, of about as many bytes."""
    total = sum(extent.size for extent in extents)
    shares: list[list[Range]] = [[] for _ in range(ranks)]
    rank = 0
    begin = 0  # bytes of all tensors before this one
    for number, extent in enumerate(extents):
        start = 0
        while start < extent.elements:
            end = extent.elements
            if rank < ranks - 1:
                wanted = total * (rank + 1) // ranks - begin
                end = _nearest_cut(extent, wanted)
            if end > start:
                shares[rank].append(Range(number, start, end - start))
                start = end
            if start < extent.elements:
                rank += 1
        begin += extent.size
    return shares


def _nearest_cut(extent: Extent, position: int) -> int:
    """Return the element at which a cut is nearest to a byte of the tensor."""
    size = extent.step * extent.itemsize
    cut = (position + size // 2) // size * extent.step
    return min(max(cut, 0), extent.elements)


def pieces(share: Sequence[Range], extents: Sequence[Extent], most: int) -> list[list[Range]]:
    """Cut a share into pieces of at most ``most`` bytes, if the steps of its tensors allow that."""
    cut: list[list[Range]] = []
    size = most
    for one in _ranges_of(share, extents, most):
        bytes_of_one = one.length * extents[one.tensor].itemsize
        if size + bytes_of_one > most:
            cut.append([])
            size = 0
        cut[-1].append(one)
        size += bytes_of_one
    return cut


def _ranges_of(share: Sequence[Range], extents: Sequence[Extent], most: int) -> Iterator[Range]:
    for tensor, start, length in share:
        step = extents[tensor].step
        steps = max(most // (step * extents[tensor].itemsize), 1)
        end = start + length
        while start < end:
            count = min(end, (start // step + steps) * step) - start
            yield Range(tensor, start, count)
            start += count
