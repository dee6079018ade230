"""Compares tensorizer and tensorizer_ops on code that was written for tensorizer.

    python -m benchmarks.local.classic [--quick] [--workloads transformer,small] [--peers us]

Each measurement is a process of its own. A round measures every library once, and targets compare
the best rounds. Every loaded or saved byte is compared with the original, outside of the timing. GB
are 10^9 bytes.

  transformer   a gigabyte in a transformer's shapes: saved, loaded, loaded from a BytesIO, and
                loaded into a module on the meta device; and the bare reads of its file
  small         3,000 tensors of 1 KiB: saved and loaded, and the time of the load in Python code
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.bare import programs as bare
from benchmarks.bare.programs import Program
from benchmarks.harness import runs, workloads
from benchmarks.harness import tables as report
from benchmarks.harness.contenders import TINY, Contender, Setting, measure_all, nothing_of
from benchmarks.harness.libraries import TENSORIZER, US, ops_load, why_not
from benchmarks.harness.measure import Task, Timing, check
from benchmarks.harness.memory import PAGE, Reserve, State, make_warm, size_of
from benchmarks.harness.targets import judge_classic
from benchmarks.harness.verdicts import Rows

PACKAGES = ("tensorizer_ops", "torch", "tensorizer")
WORKLOADS = {
    "transformer": ("a gigabyte in a transformer's shapes", workloads.CLASSIC),
    "small": ("3,000 tensors of 1 KiB", workloads.WORKLOADS["small"]),
}
REPEATS = 7  # in one process, if a load takes milliseconds


def save(library: Any, state: State, place: str) -> None:
    serializer = library.TensorSerializer(place)
    serializer.write_state_dict(state)
    serializer.close()


def load(library: Any, file: Any) -> State:
    with library.TensorDeserializer(file, device="cpu") as deserializer:
        return dict(deserializer.items())


def load_buffer(library: Any, path: str) -> State:
    """Load from bytes in memory, so that reading the file is not timed."""
    return load(library, io.BytesIO(_contents[path]))


_contents: dict[str, bytes] = {}


class Model(torch.nn.Module):
    """Nested modules with the tensors of a state dict as parameters, optionally on `device`."""

    def __init__(self, state: State, device: str | None = None) -> None:
        super().__init__()
        for name, tensor in state.items():
            *owners, leaf = name.split(".")
            owner: torch.nn.Module = self
            for step in owners:
                if step not in owner._modules:
                    owner.add_module(step, torch.nn.Module())
                owner = owner.get_submodule(step)
            own = tensor.to(device) if device else tensor
            owner.register_parameter(leaf, torch.nn.Parameter(own))


def save_module(library: Any, state: State, place: str) -> None:
    serializer = library.TensorSerializer(place)
    serializer.write_module(Model(state))
    serializer.close()


def load_module(library: Any, path: str, model: Model) -> State:
    with library.TensorDeserializer(path, device="cpu") as deserializer:
        deserializer.load_into_module(model)
    return model.state_dict()


def load_parameters(path: str) -> State:
    """Do the least that a TensorDeserializer must do: load tensors and make parameters."""
    loaded = ops_load(copy=True)(path)
    return {name: torch.nn.Parameter(tensor) for name, tensor in loaded.items()}


def limit(setting: Setting, path: Path) -> Contender:
    """The limit of a load by copy: bare reads into fresh memory."""
    program = Program(setting.programs, path, setting.threads)

    def run(_: bool) -> Timing:
        setting.settle()
        make_warm(path)
        return program.measure(bare.READ, 1, setting.reserve)

    return Contender(bare.READ.name, program.bytes, run)


def contenders(setting: Setting, workload: str, state: State) -> list[Contender]:
    ours = importlib.import_module(US.module)
    size = size_of(state)
    path = setting.directory / "model.tensors"
    module_path = setting.directory / "module.tensors"
    tiny = str(setting.directory / "tiny.tensors")
    found: list[Contender] = []
    repeats = REPEATS if workload == "small" else 1

    def add(name: str, file: Path, run: Callable[[], State], warm_up: Callable[[], object]) -> None:
        task = Task(run, lambda loaded: check(loaded, state), warm_up)
        found.append(setting.contender(name, size, lambda: task, size, file, repeats))

    def add_library(label: str, library: Any) -> None:
        def save_and_check() -> Task:
            place = str(setting.directory / f"{label}.tensors")

            def check_saved(_: State) -> None:
                check(ops_load()(place), state)
                os.unlink(place)

            return Task(
                lambda: nothing_of(save(library, state, place)),
                check_saved,
                lambda: save(library, TINY, tiny),
                lambda: Path(place).unlink(missing_ok=True),
                state,
            )

        def warm_up() -> None:
            check(load(library, tiny), TINY)

        def warm_up_buffer() -> bytes:
            warm_up()
            return _contents[str(path)][::PAGE]  # touches every page before the timing

        add(f"{label}, load", path, lambda: load(library, str(path)), warm_up)
        found.append(
            setting.contender(f"{label}, save", size, save_and_check, 2 * size, None, repeats)
        )
        if workload == "small":
            return
        add(
            f"{label}, load from a BytesIO",
            path,
            lambda: load_buffer(library, str(path)),
            warm_up_buffer,
        )
        model = Model(state, "meta")  # every measuring process fills its own copy
        add(
            f"{label}, load_into_module",
            module_path,
            lambda: load_module(library, str(module_path), model),
            warm_up,
        )

    setting.write(lambda tensors, place: save(ours, tensors, place), state, path)
    setting.write(lambda tensors, place: save(ours, tensors, place), TINY, Path(tiny))
    if workload == "transformer":
        setting.write(lambda tensors, place: save_module(ours, tensors, place), state, module_path)
        _contents[str(path)] = path.read_bytes()
    add_library("us", ours)
    if workload == "small":
        add("us, op and nn.Parameter", path, lambda: load_parameters(str(path)), lambda: None)
    else:
        found.append(limit(setting, path))
    if not why_not(TENSORIZER.module):
        add_library("tensorizer", importlib.import_module("tensorizer"))
    return found


def main() -> None:
    names = list(WORKLOADS)
    arguments = runs.parse(runs.parser(__doc__, names), names)
    runs.prepare_to_fork()
    if missing := why_not(US.module):
        sys.exit(missing)
    results: dict[str, Rows] = {}
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=arguments.directory) as directory:
        about = runs.machine(Path(directory), arguments.threads, PACKAGES)
        for name in arguments.workloads:
            title, workload = WORKLOADS[name]
            state = workloads.make(workload, arguments.quick)
            setting = Setting(
                quick=arguments.quick,
                repeat=arguments.repeat,
                threads=arguments.threads,
                programs=arguments.programs,
                directory=Path(directory) / name,
                reserve=Reserve(2 * workload.bytes(arguments.quick)),
            )
            setting.directory.mkdir()
            every = contenders(setting, name, state)
            gc.freeze()  # garbage collection in a forked process would copy every page it visits
            wanted = [c for c in every if c.name.startswith(tuple(arguments.peers or [""]))]
            results[name] = measure_all(name, wanted, arguments.repeat, arguments.quick)
            shutil.rmtree(setting.directory)
            print(report.results(title, results[name], arguments.markdown), end="\n\n", flush=True)
            _contents.clear()
            del every, wanted, state
    verdicts = judge_classic(results)
    print(report.verdicts(verdicts, arguments.markdown))
    runs.leave(arguments, about, results, verdicts, kind="classic")


if __name__ == "__main__":
    main()
