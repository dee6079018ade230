"""Compares ways to load and save, in rounds of every contender once.

So other load on the machine affects all of them alike. It makes a measurement slower, never faster,
so the best rounds are compared.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import tables, workloads
from benchmarks.harness.contenders import Contender, Setting
from benchmarks.harness.measure import Timing, prepare_to_fork
from benchmarks.harness.memory import Failure, Reserve
from benchmarks.harness.results import Found, Row, Rows, When, parser, perform


class Rounds:
    """Measures contenders and fills their rows. One that has failed once is not tried again."""

    def __init__(self, workload: str, contenders: Sequence[Contender], quick: bool) -> None:
        self.rows: Rows = {}
        for c in contenders:
            self.rows.setdefault(c.name, Row(c.bytes))
        self._workload, self._contenders, self._quick = workload, contenders, quick
        self._chosen: dict[str, int] = {}

    def measure(self, when: When, rounds: int) -> None:
        contenders = [c for c in self._contenders if c.when == when]
        for contender in contenders:
            if contender.name not in self._chosen:
                self._attempt(contender, "rehearsal", self._rehearse)
        if when == "cold":
            # The limit is the best of several kinds of reads, on a disk whose speed varies. So
            # every library gets one try for each of these kinds.
            warm = {c.name for c in self._contenders if c.when == "warm"}
            libraries = [c for c in contenders if c.name in warm]
            contenders += libraries * max(len(contenders) - len(libraries) - 1, 0)
        for number in range(rounds):
            first = number * len(contenders) // rounds  # each round starts with another one
            for contender in [*contenders[first:], *contenders[:first]]:
                self._attempt(contender, f"{when} round {number + 1}", self._record)

    def _attempt(self, contender: Contender, what: str, work: Callable[[Contender], None]) -> None:
        row = self.rows[contender.name]
        if row.error:
            return
        if sys.stderr.isatty():
            print(f"\r\033[K{self._workload}: {what}, {contender.name}", end="", file=sys.stderr)
        try:
            work(contender)
        except Failure as failure:
            row.error = str(failure)

    def _record(self, contender: Contender) -> None:
        row = self.rows[contender.name]
        seconds = self._take(contender).ready
        (row.cold if contender.when == "cold" else row.warm).append(seconds)

    def _take(self, contender: Contender, watch: bool = False) -> Timing:
        chosen = contender
        if contender.choices:
            chosen = contender.choices[self._chosen[contender.name]]
        timing = chosen.measure(watch)
        if contender.requests is not None:
            row = self.rows[contender.name]
            requests = contender.requests()
            row.requests = min(row.requests or requests, requests)
        return timing

    def _rehearse(self, contender: Contender) -> None:
        """Find the best choice and watch memory. Its timings are not recorded."""
        row, choices = self.rows[contender.name], contender.choices
        self._chosen[contender.name] = 0
        if choices:
            seconds = [choice.measure(False).ready for choice in choices]
            best, *others = sorted(range(len(choices)), key=lambda i: seconds[i])
            # Measure the two best again, because the choice is kept for all rounds.
            if not self._quick:
                again = {
                    i: min(seconds[i], choices[i].measure(False).ready) for i in (best, others[0])
                }
                best = min(again, key=lambda i: again[i])
            self._chosen[contender.name] = best
            row.choice = choices[best].name.removeprefix(f"{contender.name}, ")
        row.memory = self._take(contender, watch=True).memory


@dataclass(frozen=True)
class Scene:
    """A workload, and who loads and saves it where."""

    title: str
    workload: workloads.Workload
    # Prepares files and servers, and yields the contenders.
    contenders: Callable[[Setting], Iterator[list[Contender]]]
    rounds: int = 3


def compare(about: str | None, kind: str, scenes: Mapping[str, Scene]) -> None:
    """Measure scenes as the command line says; print and write their rows."""
    arguments = parser(about)
    names = ",".join(scenes)
    arguments.add_argument("--workloads", default=names, help=f"some of {names}")
    arguments.add_argument("--peers", default="", help="prefixes of rows, such as us,tensorizer")
    arguments.add_argument(
        "--round-trip", type=float, default=20, help="milliseconds to far servers (%(default)s)"
    )
    given = arguments.parse_args()
    chosen = given.workloads.split(",")
    if unknown := set(chosen) - set(scenes):
        arguments.error(f"unknown workload {', '.join(sorted(unknown))}; there are {names}")
    prepare_to_fork()

    def measure_scene(scene: Scene, name: str, directory: Path) -> Rows:
        setting = Setting(
            quick=given.quick,
            directory=directory,
            state=workloads.make(scene.workload, given.quick),
            reserve=Reserve(2 * scene.workload.bytes(given.quick)),
            repeats=scene.workload.repeats,
            peers=tuple(name for name in re.split(",(?! )", given.peers) if name),
            round_trip=given.round_trip / 1000,
        )
        directory.mkdir()
        with contextmanager(scene.contenders)(setting) as every:
            wanted = [c for c in every if setting.wants(c.name)]
            measuring = Rounds(name, wanted, given.quick)
            for when in ("warm", "cold"):
                measuring.measure(when, given.rounds or (1 if given.quick else scene.rounds))
        shutil.rmtree(directory)
        return measuring.rows

    def measure_scenes(folder: Path) -> Found:
        found: Found = {}
        for name in chosen:
            scene = scenes[name]
            try:
                found[name] = measure_scene(scene, name, folder / name)
            except (Failure, ImportError, OSError) as error:
                print(f"{scene.title}: not measured: {error}\n")
                continue
            if sys.stderr.isatty():
                print("\r\033[K", end="", file=sys.stderr)
            print(tables.of_rows(scene.title, found[name]), end="\n\n", flush=True)
        return found

    complete = not given.peers and set(chosen) == set(scenes)
    perform(given, kind if complete else "", measure_scenes)
