"""What is known of the tensors that a loader is watched with."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch

from tensorizer_ops._attest.compared import Difference, index_of
from tensorizer_ops._base.boxes import strides_of
from tensorizer_ops._base.coverage import Layout, Mask
from tensorizer_ops._base.memory import Span, span
from tensorizer_ops._base.ranges import Ranges
from tensorizer_ops._front.weight import Weight


class Write(NamedTuple):
    part: torch.Tensor
    other: str  # what it is compared with
    result: Callable[[], Difference | None]
    differing: Callable[[], torch.Tensor]  # a mask of the elements in the result


class Watched(NamedTuple):
    names: list[str]  # several if they are tied
    tensor: torch.Tensor
    span: Span
    crc32: int
    parts: set[Layout]  # that were compared
    writes: list[dict[Layout, Write]]  # the last one to each, in order; see Watched.settle()
    replaced: list[Callable[[], Difference | None]]  # the results of writes before these
    sources: set[str]  # the names of other watched tensors that it is copied from
    differences: dict[str, Difference]  # by what it differs from

    def write(self, made: Write) -> None:
        """Add a write, in place of one to the same part."""
        layout = Layout.of(made.part)
        self.parts.add(layout)
        if (before := self.writes[-1].pop(layout, None)) is not None:
            self.replaced.append(before.result)
        self.writes[-1][layout] = made

    def forget(self, part: torch.Tensor) -> None:
        """Leave out what is written to a part, because something else replaces it."""
        self.writes[-1].pop(Layout.of(part), None)

    def settle(self) -> None:
        """Let later writes leave what has been written as it is, because something reads it."""
        if self.writes[-1]:
            self.writes.append({})

    def compare(self) -> bool:
        """Find what differs from what is written last. Return whether more differed before."""
        is_replaced = any(result() for result in self.replaced)
        for writes in self.writes:
            results = {layout: made.result() for layout, made in writes.items()}
            if any(results.values()) and _may_overlap(writes):
                later = Mask([*writes], by_element=True)
                for layout, made in reversed(writes.items()):
                    if results[layout] and (covered := later.elements_of(made.part)).any():
                        results[layout] = Difference.at(made.differing() & ~covered)
                        is_replaced = True
                    later.add(layout)
            for layout, made in writes.items():
                if found := results[layout]:
                    places = [_place_in(self, made.part, place) for place in found.places]
                    known = self.differences.setdefault(made.other, Difference([], 0))
                    known.add(places, found.count)
        return is_replaced


class Owner(Protocol):
    """A tensor, and where it is."""

    @property
    def tensor(self) -> torch.Tensor: ...

    @property
    def span(self) -> Span: ...


_Owner = TypeVar("_Owner", bound=Owner)


class Owners(Generic[_Owner]):
    """Finds the tensors that memory belongs to."""

    def __init__(self, every: list[_Owner]) -> None:
        self.every = every
        self._ranges: dict[torch.device, Ranges[_Owner]] = defaultdict(Ranges)
        for owner in every:
            self._ranges[owner.tensor.device].add(owner.span.begin, owner.span.end, owner)

    def of(self, tensor: torch.Tensor) -> list[_Owner]:
        """Return the tensors that have some of this one's memory."""
        if isinstance(tensor, Weight) or (where := span(tensor)) is None:
            return []
        if where.begin == where.end or tensor.device not in self._ranges:
            return []
        return self._ranges[tensor.device].near(where.begin, where.end)


def _may_overlap(layouts: Iterable[Layout]) -> bool:
    ordered = sorted(layouts, key=lambda each: each.begin)
    return any(before.end > after.begin for before, after in pairwise(ordered))


def _place_in(watched: Watched, part: torch.Tensor, place: int) -> int:
    """Return the place of an element in the whole, in row-major order."""
    where = span(part)
    assert where is not None
    whole = watched.tensor
    left = where.begin - watched.span.begin
    left += sum(map(operator.mul, index_of(place, part.shape), part.stride())) * part.itemsize
    left //= whole.itemsize
    found = 0
    row_major = strides_of(whole.shape)
    long = (dim for dim, size in enumerate(whole.shape) if size > 1)  # others have any stride
    for dim in sorted(long, key=whole.stride, reverse=True):
        index, left = divmod(left, max(whole.stride(dim), 1))
        found += index * row_major[dim]
    return found
