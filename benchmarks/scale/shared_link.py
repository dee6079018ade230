"""A link that many transfers share, as a fluid: what a simulation needs of a network.

Every transfer gets the same rate, but none more than its own limit (max-min fairness). Transfers
with the same limit are alike, so they are handled together: a step costs as much as there are
different limits, not as much as there are transfers.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

# Bytes: a transfer that lacks less has ended. Sums of rates and times are not exact.
NOTHING = 1.0


@dataclass
class _Alike:
    """The transfers that have one limit."""

    rate: float = 0.0
    progress: float = 0.0  # bytes that each would have received if all had begun together
    ends: list[tuple[float, int]] = field(default_factory=list)  # by progress; a heap
    count: int = 0


@dataclass
class _Transfer:
    name: Hashable
    number: int
    limit: float
    end: float  # in the progress of those alike


class SharedLink:
    """The transfers over a link that has `capacity` bytes per second."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.now = 0.0
        self.carried = 0.0  # bytes of all transfers
        self._alike: dict[float, _Alike] = {}
        self._transfers: dict[Hashable, _Transfer] = {}
        self._numbered: dict[int, _Transfer] = {}
        self._started = 0

    def start(self, name: Hashable, size: float, limit: float) -> None:
        """Add a transfer, which ends when `size` bytes have arrived."""
        alike = self._alike.setdefault(limit, _Alike())
        self._started += 1
        transfer = _Transfer(name, self._started, limit, alike.progress + size)
        self._transfers[name] = self._numbered[transfer.number] = transfer
        heapq.heappush(alike.ends, (transfer.end, transfer.number))
        alike.count += 1
        self._share()

    def stop(self, name: Hashable) -> float:
        """Remove a transfer; return how many bytes it lacks."""
        transfer = self._transfers.pop(name)
        del self._numbered[transfer.number]
        alike = self._alike[transfer.limit]
        alike.count -= 1
        self._share()
        return transfer.end - alike.progress

    def rates(self) -> dict[Hashable, float]:
        """Return the bytes per second that each transfer receives now."""
        return {name: self._alike[one.limit].rate for name, one in self._transfers.items()}

    def next_end(self) -> float:
        """Return when the next transfer ends; infinity if there is none."""
        return min(map(self._end_of, self._alike.values()), default=math.inf)

    def advance(self, until: float) -> list[Hashable]:
        """Go on to a time that is not after the next end; return the transfers that end there."""
        seconds, self.now = until - self.now, until
        ended = []
        for alike in self._alike.values():
            alike.progress += alike.rate * seconds
            self.carried += alike.rate * seconds * alike.count
            while (first := self._first(alike)) and first.end - alike.progress < NOTHING:
                heapq.heappop(alike.ends)
                del self._numbered[first.number], self._transfers[first.name]
                alike.count -= 1
                ended.append(first)
        if ended:
            self._share()
        return [one.name for one in sorted(ended, key=lambda one: one.number)]

    def _first(self, alike: _Alike) -> _Transfer | None:
        """Return the transfer that ends first, and drop those that were stopped."""
        while alike.ends:
            if found := self._numbered.get(alike.ends[0][1]):
                return found
            heapq.heappop(alike.ends)
        return None

    def _end_of(self, alike: _Alike) -> float:
        first = self._first(alike)
        if first is None or alike.rate <= 0:
            return math.inf
        return self.now + (first.end - alike.progress) / alike.rate

    def _share(self) -> None:
        """Divide the capacity: those with low limits leave the rest to the others."""
        for limit in [limit for limit, alike in self._alike.items() if not alike.count]:
            del self._alike[limit]
        left, count = self.capacity, len(self._transfers)
        for limit in sorted(self._alike):
            alike = self._alike[limit]
            alike.rate = min(limit, max(left, 0.0) / count)
            left -= alike.rate * alike.count
            count -= alike.count


class Simulation:
    """Transfers over one link, and what happens at given times."""

    def __init__(self, capacity: float) -> None:
        self.link = SharedLink(capacity)
        self._then: dict[Hashable, Callable[[], None]] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0

    @property
    def now(self) -> float:
        return self.link.now

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Call `event` some seconds from now."""
        self._planned += 1
        heapq.heappush(self._events, (self.now + seconds, self._planned, event))

    def transfer(self, name: Hashable, size: float, limit: float, then: Callable[[], None]) -> None:
        """Start a transfer, and call `then` at its end."""
        self._then[name] = then
        self.link.start(name, size, limit)

    def stop(self, name: Hashable) -> None:
        """End a transfer early, if there is one of this name. Its `then` is not called."""
        if self._then.pop(name, None):
            self.link.stop(name)

    def run(self, is_over: Callable[[], bool]) -> float:
        """Go on until `is_over()`; return when that is."""
        while not is_over():
            event = self._events[0][0] if self._events else math.inf
            until = min(event, self.link.next_end())
            if until == math.inf:
                raise RuntimeError("nothing happens any more")
            for name in self.link.advance(max(until, self.now)):
                self._then.pop(name)()
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
        return self.now
