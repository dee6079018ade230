"""Measures speeds by the number of connections to a server, and by the number of threads.

    python -m benchmarks.curves.scaling [--quick] [--mib 512] [--rounds 3] [--json FILE]

The file has tensors of 8 MiB. A round measures everything once, and the best of the rounds counts.
Every loaded or saved byte is compared with the original, outside of the timing.

  slow      from an nginx that gives each connection 40 MB/s
  fast      from an nginx without a limit
  threads   a local file in the page cache: loaded by copy, loaded with CRC32 and SHA-256 verified,
            and saved with both
  encrypted such a file, encrypted; tensorizer's num_readers counts as threads

tensorizer's num_readers counts as connections. The limit is 40 MB/s for each connection, and bare
libcurl with as many connections. The servers run on the same CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.bare.programs import BareHttp
from benchmarks.harness import tables, workloads
from benchmarks.harness.contenders import TINY
from benchmarks.harness.libraries import (
    KEY,
    KEYED,
    US_ENCRYPTED,
    Load,
    need,
    ops_load,
    ops_save,
    tensorizer_load,
)
from benchmarks.harness.measure import Task, check, measure, prepare_to_fork, saving
from benchmarks.harness.memory import Reserve, State, make_warm, size_of
from benchmarks.harness.results import LIMIT, THREADS, US, Best, Found, Panel, measured
from benchmarks.harness.servers import web_server

CONNECTIONS = (1, 2, 4, 8, 16, 32)
NUMBERS_OF_THREADS = (1, 2, 4, 8)
BYTES_PER_SECOND = 40_000_000
Measure = Callable[[], float]


@dataclass
class Speeds:
    """Measures the points of curves in rounds, and adds the best speeds to a panel."""

    folder: Path
    state: State
    reserve: Reserve
    rounds: int

    def servers(self, panel: Panel, bytes_per_second: int | None) -> Panel:
        work: dict[tuple[str, int], Measure] = {}
        with web_server(self.folder / str(bytes_per_second), bytes_per_second) as web:
            file = web.root / "model.tensors"
            ops_save()(self.state, str(file))
            ops_save()(TINY, str(web.root / "tiny.tensors"))
            url, tiny = web.url(file.name), web.url("tiny.tensors")
            make_warm(file)
            bare = BareHttp(self.reserve)
            for n in CONNECTIONS:
                ours = ops_load(options={"connections": str(n)})
                work[US, n] = self.load(ours, url, tiny)
                work["tensorizer", n] = self.load(tensorizer_load(n), url, tiny)
                if bytes_per_second is None:
                    work[f"{LIMIT}, bare libcurl", n] = partial(bare_seconds, bare, url, file, n)
            self.take(panel, work)
        if bytes_per_second is not None:
            for n in CONNECTIONS:
                panel.add(f"{LIMIT}, n x 40 MB/s", n, n * bytes_per_second / 1e9)
        return panel

    def threads(self, panel: Panel) -> Panel:
        file, tiny = self.files("model", ops_save())
        work: dict[tuple[str, int], Measure] = {}
        for n in NUMBERS_OF_THREADS:
            for curve, verify in (("copy", "none"), ("verified", "all")):
                way = ops_load(copy=True, verify=verify, threads=n)
                work[f"{US}, {curve}", n] = self.load(way, str(file), str(tiny))
            save = saving(
                *(ops_save(threads=n), ops_load(copy=True), self.state),
                *(self.folder / "saved.tensors", tiny),
            )
            work[f"{US}, saved", n] = self.timed(save, 2)
        return self.take(panel, work)

    def encrypted(self, panel: Panel) -> Panel:
        file, tiny = self.files("encrypted", US_ENCRYPTED.save)
        work: dict[tuple[str, int], Measure] = {}
        for n in NUMBERS_OF_THREADS:
            ours, theirs = ops_load(options=KEYED, threads=n), tensorizer_load(n, key=KEY)
            work[f"{US}, loaded", n] = self.load(ours, str(file), str(tiny))
            work["tensorizer, loaded", n] = self.load(theirs, str(file), str(tiny))
            save = saving(
                *(ops_save(threads=n, options=KEYED), US_ENCRYPTED.load, self.state),
                *(self.folder / "saved-encrypted.tensors", tiny),
            )
            work[f"{US}, saved", n] = self.timed(save, 2)
        return self.take(panel, work)

    def files(self, name: str, save: Callable[[State, str], object]) -> tuple[Path, Path]:
        """Write a file and a tiny one."""
        file, tiny = self.folder / f"{name}.tensors", self.folder / f"tiny-{name}.tensors"
        save(self.state, str(file))
        save(TINY, str(tiny))
        make_warm(file)
        return file, tiny

    def timed(self, task: Task, times: int = 1) -> Measure:
        """Return the measurement of a task that needs memory for the tensors so many times."""
        lend = times * size_of(self.state)
        return lambda: measure(task, self.reserve, lend).ready

    def load(self, way: Load, place: str, tiny: str) -> Measure:
        checked = partial(check, expected=self.state)
        return self.timed(Task(partial(way, place), checked, partial(way, tiny)))

    def take(self, panel: Panel, work: dict[tuple[str, int], Measure]) -> Panel:
        best = Best()
        for _ in range(self.rounds):
            for (curve, x), seconds in work.items():
                best.keep(f"{curve}:{x}", seconds())
        for curve, x in work:
            panel.add(curve, x, size_of(self.state) / best[f"{curve}:{x}"] / 1e9)
        return panel


def bare_seconds(bare: BareHttp, url: str, file: Path, connections: int) -> float:
    return bare.load(url, file, connections).ready


def measure_all(folder: Path, mebibytes: int, rounds: int) -> Found:
    need("tensorizer")
    state = workloads.make(workloads.of_8_mib(mebibytes), quick=False)
    speeds = Speeds(folder, state, Reserve(2 * size_of(state)), rounds)

    def panel(title: str, x: str) -> Panel:
        return Panel(title, x, "GB/s", "x")

    slow = panel("Connections of 40 MB/s each", "connections")
    fast = panel("Connections to nginx on the same CPUs", "connections")
    threads = panel(f"Threads, on {THREADS} CPUs", "threads")
    encrypted = panel(f"Threads, encrypted, on {THREADS} CPUs", "threads")
    return {
        "panels": [
            speeds.servers(slow, BYTES_PER_SECOND),
            speeds.servers(fast, None),
            speeds.threads(threads),
            speeds.encrypted(encrypted),
        ]
    }


def main() -> None:
    prepare_to_fork()
    for panel in measured(__doc__, ("mib", 512, 16), 3, measure_all, "scaling")["panels"]:
        print(tables.of_panel(panel))


if __name__ == "__main__":
    main()
