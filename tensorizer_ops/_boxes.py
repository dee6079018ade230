"""Parts of tensors: boxes of elements, given by their starts and lengths."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product

Box = tuple[Sequence[int], Sequence[int]]

# Work doubles with each dimension in which a tensor is cut. No mesh has that many.
_MOST = 8


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
    if 0 in shape or len(cut) > _MOST:
        return not boxes and 0 in shape
    return _corners(boxes, cut) == _corners([([0] * len(shape), shape)], cut)


def _corners(boxes: Iterable[Box], dims: Sequence[int]) -> dict[tuple[int, ...], int]:
    """Return the corners of boxes in some dimensions, with signs, but those that cancel out.

    Boxes that have the same elements as others, each as often, have the same corners, and no other
    boxes have them: corners are the derivative of how often an element is in the boxes.
    """
    signs: Counter[tuple[int, ...]] = Counter()
    for starts, lengths in boxes:
        sides = [((starts[dim], 1), (starts[dim] + lengths[dim], -1)) for dim in dims]
        for corner in product(*sides):
            signs[tuple(place for place, _ in corner)] += math.prod(sign for _, sign in corner)
    return {corner: sign for corner, sign in signs.items() if sign}
