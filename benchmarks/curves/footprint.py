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
from collections.abc import Callable
from functools import partial
from operator import itemgetter
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
    ops_load,
    safetensors_load,
    tensorizer_load,
    torch_load,
)
from benchmarks.harness.measure import Task, check, measure, prepare_to_fork, saving
from benchmarks.harness.memory import Reserve, State, make_warm, size_of
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
    """Add the course of the round whose peak is the median, as the peaks of its parts."""
    reserve = Reserve(lend)
    courses = [measure(task, reserve, lend, watch=True).course for _ in range(rounds)]
    courses.sort(key=lambda course: max(memory for _, memory in course))
    course = courses[len(courses) // 2]
    step = len(course) // POINTS + 1
    parts = (course[i : i + step] for i in range(0, len(course), step))
    for second, memory in (*(max(part, key=itemgetter(1)) for part in parts), course[-1]):
        panel.add(curve, round(second, 4), round(memory / MIB, 1))


def measure_all(folder: Path, mebibytes: int, rounds: int) -> Found:
    state = workloads.make(workloads.of_8_mib(mebibytes))
    few = dict([*state.items()][:1])
    loads, http, modules, saves = (
        Panel(title.format(f"{mebibytes} MiB"), "seconds", "MiB")
        for title in (
            *("Load of {}", "Load of {} over HTTP", "Load of {} into a module"),
            "Save of {}, beyond the tensors",
        )
    )

    def add(
        panel: Panel, curve: str, load: Callable[[], State], warm_up: Callable[[], State]
    ) -> None:
        task = Task(load, partial(check, expected=state), warm_up)
        add_course(panel, curve, task, size_of(state), rounds)

    with web_server(folder / "web") as web:
        paths = {library: web.root / f"model{library.suffix}" for library in SAVES}
        tiny = {library: web.root / f"tiny{library.suffix}" for library in SAVES}
        for library in SAVES:
            library.save(state, str(paths[library]))
            library.save(few, str(tiny[library]))
        for curve, (library, load) in LOADS.items():
            file, small = paths[library], tiny[library]
            make_warm(file)
            add(loads, curve, partial(load, str(file)), partial(load, str(small)))
        for curve in (f"{US.name}, copy", TENSORIZER.name):
            library, load = LOADS[curve]
            url, near = web.url(paths[library].name), web.url(tiny[library].name)
            add(http, library.name, partial(load, url), partial(load, near))
        module = str(web.root / "module.tensors")
        classic_save(importlib.import_module(US.module), Model(state), module)
        for library in (US, TENSORIZER):
            imported, model = importlib.import_module(library.module), Model(state, "meta")
            into = partial(classic_load_module, imported, module, model)
            add(modules, library.name, into, partial(classic_load, imported, str(tiny[library])))
        for library in SAVES:
            warm_up = partial(library.save, few, str(tiny[library]))
            task = saving(library.save, library.load, state, paths[library], warm_up)
            add_course(saves, library.name, task, 2 * size_of(state), rounds)
    return {"panels": [loads, http, modules, saves]}


def main() -> None:
    prepare_to_fork()
    for panel in measured(__doc__, ("mib", 1024, 16), 3, measure_all, "footprint")["panels"]:
        print(tables.of_panel(panel))


if __name__ == "__main__":
    main()
