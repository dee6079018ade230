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

import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.bare.programs import BareHttp
from benchmarks.charts.curves import Panel, as_found, short
from benchmarks.charts.theme import LIMIT
from benchmarks.curves.footprint import saving
from benchmarks.curves.ways import tensors
from benchmarks.harness import runs
from benchmarks.harness import tables as report
from benchmarks.harness.best import THREADS, Best, Results, measured
from benchmarks.harness.contenders import TINY
from benchmarks.harness.libraries import (
    KEY,
    KEYED,
    US,
    US_ENCRYPTED,
    Load,
    ops_load,
    ops_save,
    tensorizer_load,
    why_not,
)
from benchmarks.harness.measure import Task, check, measure
from benchmarks.harness.memory import Reserve, make_warm, size_of
from benchmarks.harness.servers import web_server

CONNECTIONS = (1, 2, 4, 8, 16, 32)
NUMBERS_OF_THREADS = (1, 2, 4, 8)
PROGRAMS = Path(__file__).resolve().parent.parent.parent / "build"
BYTES_PER_SECOND = 40_000_000
Measure = Callable[[], float]


def measure_all(folder: Path, mebibytes: int, rounds: int) -> Results:
    state = tensors(mebibytes)
    size = size_of(state)
    reserve = Reserve(2 * size)
    gc.freeze()  # garbage collection in a forked process would copy every page it visits

    def timed(task: Task, threads: int = THREADS, lend: int = size) -> Measure:
        return lambda: measure(task, repeats=1, threads=threads, reserve=reserve, lend=lend).ready

    def load(way: Load, place: str, tiny: str) -> Task:
        return Task(partial(way, place), partial(check, expected=state), partial(way, tiny))

    def servers(title: str, bytes_per_second: int | None) -> Panel:
        panel = Panel(title, "connections", "GB/s", "x")
        work: dict[tuple[str, int], Measure] = {}
        with web_server(folder / str(bytes_per_second), bytes_per_second) as web:
            file = web.root / "model.tensors"
            ops_save()(state, str(file))
            ops_save()(TINY, str(web.root / "tiny.tensors"))
            url, tiny = web.url(file.name), web.url("tiny.tensors")
            make_warm(file)
            bare = BareHttp(PROGRAMS, reserve, ())
            for n in CONNECTIONS:
                ours = ops_load(options={"connections": str(n)})
                work[US.name, n] = timed(load(ours, url, tiny))
                work["tensorizer", n] = timed(load(tensorizer_load(n), url, tiny))
                if bytes_per_second is None:
                    work[f"{LIMIT}, bare libcurl", n] = partial(bare_seconds, bare, url, file, n)
            take(panel, work, size, rounds)
        if bytes_per_second is not None:
            for n in CONNECTIONS:
                panel.add(f"{LIMIT}, n x 40 MB/s", n, n * bytes_per_second / 1e9)
        return panel

    panels = [
        servers("Connections of 40 MB/s each", BYTES_PER_SECOND),
        servers("Connections to nginx on the same CPUs", None),
    ]
    threads = Panel(f"Threads, on {THREADS} CPUs", "threads", "GB/s", "x")
    file, tiny = folder / "model.tensors", folder / "tiny.tensors"
    ops_save()(state, str(file))
    ops_save()(TINY, str(tiny))
    make_warm(file)
    encrypted = Panel(f"Threads, encrypted, on {THREADS} CPUs", "threads", "GB/s", "x")
    secret, small = folder / "encrypted.tensors", folder / "tiny-encrypted.tensors"
    US_ENCRYPTED.save(state, str(secret))
    US_ENCRYPTED.save(TINY, str(small))
    make_warm(secret)
    work = {}
    ciphers = {}
    for n in NUMBERS_OF_THREADS:
        for curve, verify in (("copy", "none"), ("verified", "all")):
            way = ops_load(copy=True, verify=verify, threads=n)
            work[f"{US.name}, {curve}", n] = timed(load(way, str(file), str(tiny)))
        library = replace(US, save=ops_save("all", threads=n))
        save = saving(library, state, folder / "saved.tensors", tiny)
        work[f"{US.name}, saved", n] = timed(save, lend=2 * size)
        ours = ops_load(options=KEYED, threads=n)
        ciphers[f"{US.name}, loaded", n] = timed(load(ours, str(secret), str(small)))
        theirs = tensorizer_load(n, key=KEY)
        ciphers["tensorizer, loaded", n] = timed(load(theirs, str(secret), str(small)))
        library = replace(US_ENCRYPTED, save=ops_save("all", threads=n, options=KEYED))
        save = saving(library, state, folder / "saved-encrypted.tensors", small)
        ciphers[f"{US.name}, saved", n] = timed(save, lend=2 * size)
    take(threads, work, size, rounds)
    take(encrypted, ciphers, size, rounds)
    return as_found([*panels, threads, encrypted])


def bare_seconds(bare: BareHttp, url: str, file: Path, connections: int) -> float:
    return bare.load(url, file, connections).ready


def take(panel: Panel, work: dict[tuple[str, int], Measure], size: int, rounds: int) -> None:
    """Measure everything once a round, and add the speeds of the best rounds."""
    best = Best()
    for _ in range(rounds):
        for (curve, x), seconds in work.items():
            best.keep(f"{curve}:{x}", seconds())
    for curve, x in work:
        panel.add(curve, x, size / best[f"{curve}:{x}"] / 1e9)


def main() -> None:
    runs.prepare_to_fork()
    for library in (US.module, "tensorizer"):
        if missing := why_not(library):
            sys.exit(missing)
    found = measured(__doc__, ("mib", 512, 16), 3, measure_all, "scaling")
    for panel in found["panels"]:
        print(panel["title"])
        values = [x for x, _ in next(iter(panel["curves"].values()))]
        lines = [
            [curve, *(f"{speed:.2f}" for _, speed in points)]
            for curve, points in panel["curves"].items()
        ]
        head = [f"GB/s by {panel['x']}", *map(short, values)]
        print(report.table(head, lines, 1, markdown=False), end="\n\n")


if __name__ == "__main__":
    main()
