"""The contenders of a workload: ways to load or save, and how to measure them."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.harness.bare import Limit, data_size, run_http, run_limit
from benchmarks.harness.libraries import Load, Save
from benchmarks.harness.measure import Task, Timing, check, measure
from benchmarks.harness.memory import (
    Failure,
    Reserve,
    State,
    make_cold,
    make_warm,
    settle,
    size_of,
)
from benchmarks.harness.results import When

Place = TypeVar("Place", Path, str)

TINY = {f"tiny.{i}": torch.arange(1024, dtype=torch.float32) + i for i in range(4)}


@dataclass(frozen=True)
class Contender:
    name: str
    bytes: int
    # The argument says whether to watch memory.
    measure: Callable[[bool], Timing]
    when: When = "warm"
    # Alternatives; the fastest one in a first round is measured.
    choices: tuple[Contender, ...] = ()
    # Returns the number of sequential requests of the last measurement.
    requests: Callable[[], int] | None = None


@dataclass(frozen=True)
class Setting:
    """What all measurements of a workload share."""

    quick: bool
    directory: Path
    state: State
    reserve: Reserve
    repeats: int  # how often a process repeats a load that takes milliseconds
    peers: tuple[str, ...]  # prefixes of the rows to measure; all if it is empty
    round_trip: float  # the seconds of a round trip to a far server

    def wants(self, name: str) -> bool:
        """The prefix "limit" stands for all bare work."""
        bare = ("bare work", "cold pread") if "limit" in self.peers else ()
        return not self.peers or name.startswith((*self.peers, *bare))

    def settle(self) -> None:
        if not self.quick:
            settle()

    def write(self, save: Save, place: Place, state: State | None = None) -> Place:
        """Write a file to load later. If that fails, the loads will."""
        self.settle()
        task = Task(lambda: save(state or self.state, str(place)), lambda _: None)
        with suppress(Failure):
            measure(task, self.reserve, 0)
        return place

    def performs(
        self,
        name: str,
        task: Task,
        file: Path | None = None,
        repeats: int = 1,
        when: When = "warm",
    ) -> Contender:
        """Return a contender that loads or saves the tensors in a new process.

        `file` is in the page cache then, or not if `when` is "cold".
        """
        size = size_of(self.state)

        def run(watch: bool) -> Timing:
            self.settle()
            if file and file.exists():
                (make_cold if when == "cold" else make_warm)(file)
            # A save needs memory for the file, or for the server, and as much again to check it.
            lend = size * (2 if task.saved else 1)
            return measure(task, self.reserve, lend, repeats=repeats, watch=watch)

        return Contender(name, size, run, when)

    def loads(
        self, name: str, load: Load, uri: str, tiny: str, file: Path | None = None
    ) -> Contender:
        """Return a contender that loads from `uri`; it warms up by loading `tiny`."""
        task = Task(
            run=lambda: load(uri),
            check=lambda loaded: check(loaded, self.state),
            warm_up=lambda: check(load(tiny), TINY),
        )
        return self.performs(name, task, file)

    def saves(self, name: str, save: Save, check_saved: Callable[[str], object]) -> Contender:
        """Return a contender that saves under a new name each time.

        So it does not profit from a server's cache. `check_saved` is called with that name.
        """

        def place() -> str:
            return f"saved-{os.getpid()}"

        task = Task(
            run=lambda: save(self.state, place()),
            check=lambda _: check_saved(place()),
            warm_up=lambda: save(TINY, f"{place()}-tiny"),
            saved=self.state,
        )
        return self.performs(name, task)

    def limit(self, limit: Limit, file: Path, repeats: int = 1) -> Contender:
        """Return the bare work of loads of a .tensors file, or of saves of its size."""

        def run(_: bool) -> Timing:
            self.settle()
            if limit.cold:
                make_cold(file)
            elif not limit.writes:
                make_warm(file)
            return run_limit(limit, file, self.reserve, 1 if limit.cold else repeats)

        return Contender(limit.name, data_size(file), run, "cold" if limit.cold else "warm")

    def bare_load(self, name: str, connections: int, url: str, file: Path, **how: str) -> Contender:
        """Return a load by bare libcurl."""

        def run(_: bool) -> Timing:
            self.settle()
            make_warm(file)
            return run_http(url, file, self.reserve, connections, **how)

        return Contender(name, data_size(file), run)

    def bare_loads(self, counts: Sequence[int], url: str, file: Path, **how: str) -> Contender:
        """Return bare libcurl with the best of these numbers of connections."""
        name = "bare libcurl, load"
        choices = (self.bare_load(f"{name}, {n} connections", n, url, file, **how) for n in counts)
        return best_of(name, choices, self.quick)


def best_of(name: str, choices: Iterable[Contender], quick: bool) -> Contender:
    """Return a contender that is the best of `choices`; a quick run tries only the first two.

    The names of the choices start with `name`.
    """
    chosen = tuple(choices)[: 2 if quick else None]
    return replace(chosen[0], name=name, choices=chosen)


def same_file(saved: Path, original: Path) -> None:
    if not filecmp.cmp(saved, original, shallow=False):
        raise Failure("the bytes differ from those that were saved")
