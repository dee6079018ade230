"""Which rank reads what: every element once, evenly, cut where the parts of a tensor allow it."""

from __future__ import annotations

import random

import pytest

from tensorizer_ops._distributed.shares import Extent, Range, divide, pieces


def extents_of(dice: random.Random) -> list[Extent]:
    extents = []
    for _ in range(dice.randrange(8)):
        elements = dice.choice([0, 1, 3, dice.randrange(5000)])
        step = dice.choice([1, 7, 64, max(elements, 1)])
        extents.append(Extent(elements, dice.choice([1, 2, 4, 8]), step))
    return extents


@pytest.mark.parametrize("seed", range(300))
def test_random_models(seed: int) -> None:
    dice = random.Random(seed)
    extents = extents_of(dice)
    ranks = dice.randrange(1, 9)
    shares = divide(extents, ranks)

    def size(ranges: list[Range]) -> int:
        return sum(each.length * extents[each.tensor].itemsize for each in ranges)

    ends = [0] * len(extents)
    for tensor, start, length in (each for share in shares for each in share):
        assert start == ends[tensor] and length > 0 and start % extents[tensor].step == 0
        ends[tensor] += length
    assert ends == [extent.elements for extent in extents]
    largest = max((extent.step * extent.itemsize for extent in extents), default=0)
    total = sum(extent.size for extent in extents)
    assert all(size(share) <= total / ranks + largest + 1 for share in shares)
    most = dice.choice([1, 100, 5000])
    for share in shares:
        cut = pieces(share, extents, most)
        assert sum(map(size, cut)) == size(share)
        assert all(len(piece) == 1 or 0 < size(piece) <= most for piece in cut)
