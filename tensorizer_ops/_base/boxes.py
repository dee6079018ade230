"""Parts of tensors: boxes of elements, given by their starts and lengths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, product
from operator import itemgetter

Box = tuple[Sequence[int], Sequence[int]]

# Boxes have two corners for each dimension in which a tensor is cut. No mesh has so many.
_MOST_CORNERS = 1 << 18


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def make_up(shape: Sequence[int], boxes: Sequence[Box]) -> bool:
    """Return whether boxes make up a whole: no element is in two of them, or in none."""
    boxes = [box for box in boxes if 0 not in box[1]]
    cut = [i for i, size in enumerate(shape) if any(lengths[i] < size for _, lengths in boxes)]
    if 0 in shape or len(boxes) << len(cut) > _MOST_CORNERS:
        return not boxes and 0 in shape
    return _corners(boxes, cut) == _corners([([0] * len(shape), shape)], cut)


def _corners(boxes: Iterable[Box], dims: Sequence[int]) -> list[tuple[tuple[int, ...], int]]:
    """Return the corners of boxes in some dimensions, with signs, but those that cancel out.

    Boxes that have the same elements as others, each as often, have the same corners, and no other
    boxes have them: corners are the derivative of how often an element is in the boxes.
    """
    # Sorted, because whoever wrote the boxes can choose numbers whose hashes are equal.
    signs = sorted(_signs(boxes, dims))
    summed = [(at, sum(sign for _, sign in same)) for at, same in groupby(signs, itemgetter(0))]
    return [(corner, sign) for corner, sign in summed if sign]


def _signs(boxes: Iterable[Box], dims: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int]]:
    for starts, lengths in boxes:
        sides = [((starts[dim], 1), (starts[dim] + lengths[dim], -1)) for dim in dims]
        for corner in product(*sides):
            yield tuple(place for place, _ in corner), math.prod(sign for _, sign in corner)
