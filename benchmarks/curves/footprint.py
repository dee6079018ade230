"""Measures how much memory loads and saves use over time.

    python -m benchmarks.curves.footprint [--quick] [--mib 1024] [--json FILE]

Memory is what a process has for itself: pages of a mapped file do not count. It is read every two
milliseconds, and that from before the call is subtracted. Each load and save is a process of its
own. Every byte is compared with the original afterwards.

  load   from a file in the page cache, into memory of its own
  save   of tensors that are in memory already, so what counts is beyond them
  HTTP   a load from nginx on the same CPUs
  module a load into a module on the meta device, by code for tensorizer
"""

from __future__ import annotations

import gc
import importlib
import sys
from functools import partial
from pathlib import Path

from benchmarks.charts.curves import Panel, as_found
from benchmarks.charts.letter_values import quantile
from benchmarks.curves.ways import tensors
from benchmarks.harness import runs
from benchmarks.harness import tables as report
from benchmarks.harness.best import THREADS, Results, measured
from benchmarks.harness.contenders import nothing_of
from benchmarks.harness.libraries import (
    CHECKERS,
    LIBRARIES,
    SAFETENSORS,
    TENSORIZER,
    TORCH,
    US,
    Library,
    Load,
    ops_load,
    safetensors_load,
    tensorizer_load,
    torch_load,
    why_not,
)
from benchmarks.harness.measure import Task, check, measure
from benchmarks.harness.memory import Reserve, State, make_warm, size_of
from benchmarks.harness.servers import web_server
from benchmarks.local import classic

MIB = 1 << 20


def copied(load: Load) -> Load:
    """Return a load whose tensors own their memory, as a program needs that trains them."""
    return lambda place: {name: tensor.clone() for name, tensor in load(place).items()}


LOADS: dict[str, tuple[Library, Load]] = {
    "tensorizer_ops, copy": (US, ops_load(copy=True)),
    "tensorizer_ops, mapped": (US, ops_load()),
    "tensorizer": (TENSORIZER, tensorizer_load(None)),
    "torch, load": (TORCH, torch_load(mmap=False)),
    "safetensors, mapped and cloned": (SAFETENSORS, copied(safetensors_load)),
}
SAVES = (US, TENSORIZER, SAFETENSORS, TORCH)


def add_course(panel: Panel, curve: str, task: Task, lend: int, rounds: int) -> None:
    """Add the course of the round whose peak is the median."""
    reserve = Reserve(lend)
    courses = [
        measure(task, repeats=1, threads=THREADS, reserve=reserve, lend=lend, watch=True).course
        for _ in range(rounds)
    ]
    peaks = sorted((max(memory for _, memory in course), i) for i, course in enumerate(courses))
    for second, memory in courses[peaks[len(peaks) // 2][1]]:
        panel.add(curve, round(second, 4), round(memory / MIB, 1))


def measure_all(folder: Path, mebibytes: int, rounds: int) -> Results:
    state = tensors(mebibytes)
    size = size_of(state)
    about = f"{mebibytes} MiB"
    loads = Panel(f"Load of {about}", "seconds", "MiB")
    saves = Panel(f"Save of {about}, beyond the tensors", "seconds", "MiB")
    http = Panel(f"Load of {about} over HTTP", "seconds", "MiB")
    modules = Panel(f"Load of {about} into a module", "seconds", "MiB")
    gc.freeze()  # garbage collection in a forked process would copy every page it visits
    with web_server(folder / "web") as web:
        paths = {library: web.root / f"model{library.suffix}" for library in SAVES}
        tiny = {library: web.root / f"tiny{library.suffix}" for library in SAVES}
        for library in SAVES:
            library.save(state, str(paths[library]))
            library.save(dict(list(state.items())[:1]), str(tiny[library]))
        for curve, (library, load) in LOADS.items():
            make_warm(paths[library])
            task = Task(
                partial(load, str(paths[library])),
                partial(check, expected=state),
                partial(load, str(tiny[library])),
            )
            add_course(loads, curve, task, size, rounds)
        for curve in ("tensorizer_ops, copy", "tensorizer"):
            library, load = LOADS[curve]
            task = Task(
                partial(load, web.url(paths[library].name)),
                partial(check, expected=state),
                partial(load, web.url(tiny[library].name)),
            )
            add_course(http, curve.partition(",")[0], task, size, rounds)
        module = web.root / "module.tensors"
        classic.save_module(importlib.import_module(US.module), state, str(module))
        for library in (US, TENSORIZER):
            ours = importlib.import_module(library.module)
            task = Task(
                partial(classic.load_module, ours, str(module), classic.Model(state, "meta")),
                partial(check, expected=state),
                partial(classic.load, ours, str(tiny[library])),
            )
            add_course(modules, library.name, task, size, rounds)
        for library in SAVES:
            task = saving(library, state, paths[library], tiny[library])
            add_course(saves, library.name, task, 2 * size, rounds)
    return as_found([loads, http, modules, saves])


def saving(library: Library, state: State, place: Path, tiny: Path) -> Task:
    """Return the task that saves to `place`, and warms up by saving to `tiny`."""
    few = dict(list(state.items())[:1])
    return Task(
        lambda: nothing_of(library.save(state, str(place))),
        lambda _: check(CHECKERS[library.name](str(place)), state),
        lambda: library.save(few, str(tiny)),
        saved=state,
    )


def main() -> None:
    runs.prepare_to_fork()
    for library in LIBRARIES:
        if library in SAVES and (missing := why_not(library.module)):
            sys.exit(missing)
    found = measured(__doc__, ("mib", 1024, 16), 3, measure_all, "footprint")
    lines = []
    for panel in found["panels"]:
        for curve, points in panel["curves"].items():
            memory = sorted(y for _, y in points)
            shown = (f"{quantile(memory, part):.0f}" for part in (0.5, 1))
            lines.append([panel["title"], curve, *shown, f"{points[-1][0]:.2f} s"])
    print(report.table(["", "", "median MiB", "most", "until"], lines, 2, markdown=False))


if __name__ == "__main__":
    main()
