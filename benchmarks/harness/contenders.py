"""The contenders of a benchmark: ways to load or save, and how to measure them."""

from __future__ import annotations

import filecmp
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.bare.programs import BareHttp
from benchmarks.harness.libraries import Load, Save
from benchmarks.harness.measure import Task, Timing, check, measure
from benchmarks.harness.memory import Failure, Reserve, State, make_warm, settle, size_of
from benchmarks.harness.turns import Turns
from benchmarks.harness.verdicts import Row, Rows

Place = TypeVar("Place", Path, str)

TINY = {f"tiny.{i}": torch.arange(1024, dtype=torch.float32) + i for i in range(4)}

_numbers = itertools.count()


def new_name() -> str:
    """Return a unique name, so that a save does not profit from a server's cache of another."""
    return f"saved-{next(_numbers)}"


def nothing_of(_: object) -> State:
    """Return the empty state: the result of a task that loads nothing."""
    return {}


@dataclass(frozen=True)
class Contender:
    name: str
    bytes: int
    # The argument says whether to watch memory.
    measure: Callable[[bool], Timing]
    # Alternatives; the fastest one in a first round is measured.
    choices: tuple[Contender, ...] = ()
    missing: str = ""  # the reason if it cannot be measured
    # Returns the number of sequential requests of the last measurement.
    rounds: Callable[[], int] | None = None


@dataclass(frozen=True)
class Setting:
    """The settings that all measurements share."""

    quick: bool
    repeat: int
    threads: int
    programs: Path
    directory: Path
    reserve: Reserve
    whole: State = field(default_factory=dict)  # 1 GiB in one tensor
    state: State = field(default_factory=dict)  # the same bytes in tensors of 32 MiB
    round_trip: float = 0  # the seconds of a round trip to a far server

    def bare(self, options: tuple[str, ...]) -> BareHttp:
        return BareHttp(self.programs, self.reserve, options)

    def settle(self) -> None:
        if not self.quick:
            settle()

    def perform(self, task: Task, lend: int, watch: bool = False, repeats: int = 1) -> Timing:
        self.settle()
        return measure(
            task,
            repeats=repeats,
            threads=self.threads,
            reserve=self.reserve,
            lend=lend,
            watch=watch,
        )

    def write(self, save: Save, state: State, place: Place) -> Place:
        """Write a file to load later."""
        self.perform(Task(lambda: nothing_of(save(state, str(place))), lambda _: None), 0)
        return place

    def prepare(self, missing: str, write: Callable[[], object]) -> str:
        """Write the files that a peer loads, unless it is missing.

        Returns the reason if the peer cannot be measured, otherwise an empty string.
        """
        try:
            if not missing:
                write()
        except Failure as failure:
            return str(failure)
        return missing

    def contender(
        self,
        name: str,
        size: int,
        task: Callable[[], Task],
        lend: int,
        file: Path | None = None,
        repeats: int = 1,
    ) -> Contender:
        """Return a contender that performs a task in a new process; `file` is in the page cache."""

        def run(watch: bool) -> Timing:
            if file is not None:
                make_warm(file)
            return self.perform(task(), lend, watch, repeats)

        return Contender(name, size, run)

    def loads(
        self,
        name: str,
        load: Load,
        uri: str,
        tiny: str,
        state: State,
        file: Path | None = None,
    ) -> Contender:
        """Return a contender that loads `state` from `uri`; it warms up by loading `tiny`."""
        task = Task(
            run=lambda: load(uri),
            check=lambda loaded: check(loaded, state),
            warm_up=lambda: check(load(tiny), TINY),
        )
        return self.contender(name, size_of(state), lambda: task, size_of(state), file)

    def bare_load(
        self, name: str, connections: int, url: str, file: Path, *options: str
    ) -> Contender:
        def run(_: bool) -> Timing:
            self.settle()
            make_warm(file)
            return self.bare(options).load(url, file, connections)

        return Contender(name, BareHttp.size_of(file), run)

    def bare_loads(self, counts: Sequence[int], url: str, file: Path, *options: str) -> Contender:
        """Return bare libcurl with the best of these numbers of connections."""
        name = "bare libcurl, load"
        choices = (
            self.bare_load(f"{name}, {n} connections", n, url, file, *options) for n in counts
        )
        return best_of(name, choices, self.quick)

    def saves(
        self,
        name: str,
        save: Save,
        check_saved: Callable[[str], object],
        state: State,
    ) -> Contender:
        """Return a contender that saves `state` under a new name each time.

        `check_saved` is called with that name.
        """

        def task() -> Task:
            place = new_name()
            return Task(
                run=lambda: nothing_of(save(state, place)),
                check=lambda _: check_saved(place),
                warm_up=lambda: save(TINY, f"{place}-tiny"),
                saved=state,
            )

        # Memory for the server, which keeps the saved data, and for the check.
        return self.contender(name, size_of(state), task, 2 * size_of(state))


def best_of(name: str, choices: Iterable[Contender], quick: bool) -> Contender:
    """Return a contender that is the best of `choices`; a quick run tries only the first two.

    The names of the choices start with `name`.
    """
    chosen = tuple(choices)[: 2 if quick else None]
    return replace(chosen[0], name=name, choices=chosen)


def computed(name: str, size: int, seconds: float) -> Contender:
    """Return a row that is computed instead of measured."""
    return Contender(name, size, lambda _: Timing(seconds, seconds, None))


def unless(reason: str, contender: Contender) -> Contender:
    """Mark a contender as impossible to measure if `reason` is not empty."""
    return replace(contender, missing=reason)


def same_file(saved: Path, original: Path) -> None:
    if not filecmp.cmp(saved, original, shallow=False):
        raise Failure("the bytes differ from those that were saved")


def measure_all(workload: str, contenders: list[Contender], repeat: int, quick: bool) -> Rows:
    rows = {c.name: Row(c.bytes, error=c.missing) for c in contenders}
    turns = Turns(workload, rows, repeat)
    chosen: dict[str, Contender] = {}

    def take(contender: Contender, watch: bool = False) -> Timing:
        timing = chosen.get(contender.name, contender).measure(watch)
        if contender.rounds is not None:
            row = rows[contender.name]
            rounds = contender.rounds()
            row.rounds = min(row.rounds or rounds, rounds)
            row.choice = f"{row.rounds} requests in a row"
        return timing

    def rehearse(contender: Contender) -> None:
        """Find the best choice and watch memory. Its timings are not recorded."""
        row = rows[contender.name]
        if contender.choices:
            seconds = {choice: choice.measure(False).ready for choice in contender.choices}
            best, *others = sorted(contender.choices, key=lambda choice: seconds[choice])
            # Measure the two best again, because the choice is kept for all rounds.
            if not quick:
                again = {c: min(seconds[c], c.measure(False).ready) for c in (best, others[0])}
                best = min(again, key=lambda choice: again[choice])
            chosen[contender.name] = best
            row.choice = best.name.removeprefix(f"{contender.name}, ")
        row.memory = take(contender, watch=True).memory

    for contender in contenders:
        turns.attempt(contender, "rehearsal", rehearse)
    turns.take("warm", contenders, take)
    return rows
