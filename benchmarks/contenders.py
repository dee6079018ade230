"""What is measured: one way to load or to save, and what it takes to measure it."""

from __future__ import annotations

import filecmp
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import torch

from bare import BareHttp
from measure import Task, Timing, check, measure
from memory import Failure, Reserve, State, make_warm, settle, size_of
from peers import Load, Save
from turns import Turns
from verdicts import Row, Rows

Place = TypeVar("Place", Path, str)

TINY = {f"tiny.{i}": torch.arange(1024, dtype=torch.float32) + i for i in range(4)}

_numbers = itertools.count()


def new_name() -> str:
    """No two saves have the same: what a server remembers of the last one is not measured."""
    return f"saved-{next(_numbers)}"


def nothing_of(_: object) -> State:
    """What a task has loaded that loads nothing."""
    return {}


@dataclass(frozen=True)
class Contender:
    name: str
    bytes: int
    # The argument: whether the memory is watched.
    measure: Callable[[bool], Timing]
    # Of these, the fastest in a first round is measured.
    choices: tuple[Contender, ...] = ()
    missing: str = ""  # why it cannot be measured
    # How many requests in a row the last measurement needed.
    rounds: Callable[[], int] | None = None


@dataclass(frozen=True)
class Setting:
    """What all measurements have in common."""

    quick: bool
    repeat: int
    threads: int
    programs: Path
    directory: Path
    reserve: Reserve
    whole: State = field(default_factory=dict)  # 1 GiB in one tensor,
    state: State = field(default_factory=dict)  # and the same bytes in tensors of 32 MiB
    round_trip: float = 0  # seconds to a far server

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
        """Makes what is loaded later."""
        self.perform(Task(lambda: nothing_of(save(state, str(place))), lambda _: None), 0)
        return place

    def prepare(self, missing: str, write: Callable[[], object]) -> str:
        """Makes what a peer loads, unless it is missing. Why it cannot be measured, if so."""
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
        """Performs a task in a process of its own; the file that is read is warm."""

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
        """Loads `state` from `uri`, after something tiny of the same kind."""
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
        """By bare libcurl, with the best of these counts of connections."""
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
        """Saves `state` under a name that is new each time, and lets the caller check it."""

        def task() -> Task:
            place = new_name()
            return Task(
                run=lambda: nothing_of(save(state, place)),
                check=lambda _: check_saved(place),
                warm_up=lambda: save(TINY, f"{place}-tiny"),
                saved=state,
            )

        # The server keeps what is saved, and the check takes as much once more.
        return self.contender(name, size_of(state), task, 2 * size_of(state))


def best_of(name: str, choices: Iterable[Contender], quick: bool) -> Contender:
    """Those whose names go on after `name`; a quick run takes the first two."""
    chosen = tuple(choices)[: 2 if quick else None]
    return replace(chosen[0], name=name, choices=chosen)


def computed(name: str, size: int, seconds: float) -> Contender:
    """A row that is computed instead of measured."""
    return Contender(name, size, lambda _: Timing(seconds, seconds, None))


def unless(reason: str, contender: Contender) -> Contender:
    """One that cannot be measured where there is a reason."""
    return replace(contender, missing=reason)


def same_file(saved: Path, original: Path) -> None:
    if not filecmp.cmp(saved, original, shallow=False):
        raise Failure("other bytes than were saved")


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
        """Untimed: the best choices are found, and memory is watched."""
        row = rows[contender.name]
        if contender.choices:
            seconds = {choice: choice.measure(False).ready for choice in contender.choices}
            best, *others = sorted(contender.choices, key=lambda choice: seconds[choice])
            # The two best again: a choice that is made by chance would stay for all rounds.
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
