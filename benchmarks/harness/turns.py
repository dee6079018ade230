"""Measures in rounds of every entry once, so that other load on the machine affects all alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from benchmarks.harness.measure import Timing
from benchmarks.harness.memory import Failure
from benchmarks.harness.verdicts import Rows, When


class Named(Protocol):
    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=Named)


class Turns:
    """Measures entries and fills their rows. An entry that has failed once is not retried."""

    def __init__(self, workload: str, rows: Rows, repeat: int) -> None:
        self._workload = workload
        self._rows = rows
        self._repeat = repeat

    def attempt(
        self, entry: Entry, what: str, work: Callable[[Entry], Timing | None]
    ) -> Timing | None:
        row = self._rows[entry.name]
        if row.error:
            return None
        if sys.stderr.isatty():
            print(f"\r\033[K{self._workload}: {what}, {entry.name}", end="", file=sys.stderr)
        try:
            return work(entry)
        except Failure as failure:
            row.error = str(failure)
            return None

    def take(
        self, when: When, entries: Sequence[Entry], work: Callable[[Entry], Timing | None]
    ) -> None:
        for number in range(self._repeat):
            first = number * len(entries) // self._repeat  # each round starts with another entry
            for entry in [*entries[first:], *entries[:first]]:
                timing = self.attempt(entry, f"{when} round {number + 1}", work)
                row = self._rows[entry.name]
                row.ready[when].append(timing.ready if timing else None)
                row.call[when].append(timing.seconds if timing else None)
