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

import importlib
from functools import partial
from pathlib import Path

from benchmarks.harness import tables, workloads
from benchmarks.harness.libraries import (
    SAFETENSORS,
    TENSORIZER,
    TORCH,
    US,
    Library,
    Load,
    Model,
    classic_load,
    classic_load_module,
    classic_save,
    need,
    ops_load,
    safetensors_load,
    tensorizer_load,
    torch_load,
)
from benchmarks.harness.measure import Task, check, measure, prepare_to_fork, saving
from benchmarks.harness.memory import Reserve, make_warm, size_of
from benchmarks.harness.results import Found, Panel, measured
from benchmarks.harness.servers import web_server

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
POINTS = 60  # of a curve, at most
SAVES = (US, TENSORIZER, SAFETENSORS, TORCH)


def add_course(panel: Panel, curve: str, task: Task, lend: int, rounds: int) -> None:
    """Add the course of the round whose peak is the median, as the peaks of equal times."""
    reserve = Reserve(lend)
    courses = [measure(task, reserve, lend, watch=True).course for _ in range(rounds)]
    courses.sort(key=lambda course: max(memory for _, memory in course))
    course = courses[len(courses) // 2]
    slices: dict[int, tuple[float, int]] = {}
    for second, memory in course[:-1]:
        number = int(second / course[-1][0] * (POINTS - 1))
        slices[number] = max(slices.get(number, (second, memory)), (second, memory), key=_memory)
    for second, memory in (*slices.values(), course[-1]):
        panel.add(curve, round(second, 4), round(memory / MIB, 1))


def _memory(point: tuple[float, int]) -> int:
    return point[1]


def measure_all(folder: Path, mebibytes: int, rounds: int) -> Found:
    need(*(library.module for library in SAVES))
    state = workloads.make(workloads.of_8_mib(mebibytes), quick=False)
    size = size_of(state)
    about = f"{mebibytes} MiB"
    loads = Panel(f"Load of {about}", "seconds", "MiB")
    saves = Panel(f"Save of {about}, beyond the tensors", "seconds", "MiB")
    http = Panel(f"Load of {about} over HTTP", "seconds", "MiB")
    modules = Panel(f"Load of {about} into a module", "seconds", "MiB")
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
        classic_save(importlib.import_module(US.module), Model(state), str(module))
        for library in (US, TENSORIZER):
            ours = importlib.import_module(library.module)
            task = Task(
                partial(classic_load_module, ours, str(module), Model(state, "meta")),
                partial(check, expected=state),
                partial(classic_load, ours, str(tiny[library])),
            )
            add_course(modules, library.name, task, size, rounds)
        for library in SAVES:
            task = saving(library.save, library.load, state, paths[library], tiny[library])
            add_course(saves, library.name, task, 2 * size, rounds)
    return {"panels": [loads, http, modules, saves]}


def main() -> None:
    prepare_to_fork()
    for panel in measured(__doc__, ("mib", 1024, 16), 3, measure_all, "footprint")["panels"]:
        print(tables.of_panel(panel))


if __name__ == "__main__":
    main()
