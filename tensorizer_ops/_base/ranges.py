"""Finding what has a part of a range of addresses."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class Ranges(Generic[_Value]):
    """Values with ranges of addresses, which may overlap."""

    def __init__(self) -> None:
        self._begins: list[int] = []  # in ascending order
        self._every: list[tuple[int, int, _Value]] = []  # in the same order
        self._longest = 0

    def add(self, begin: int, end: int, value: _Value) -> None:
        """Add a value with the range from ``begin`` to ``end``."""
        place = bisect_right(self._begins, begin)
        self._begins.insert(place, begin)
        self._every.insert(place, (begin, end, value))
        self._longest = max(self._longest, end - begin)

    def near(self, begin: int, end: int) -> list[_Value]:
        """Return the values that have addresses in this range, by where they begin."""
        first = bisect_right(self._begins, begin - self._longest)
        last = bisect_left(self._begins, end)
        return [value for _, until, value in self._every[first:last] if until > begin]
