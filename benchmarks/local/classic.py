"""Compares tensorizer and tensorizer_ops on code that was written for tensorizer.

    python -m benchmarks.local.classic [--quick] [--workloads transformer,small] [--peers us]

Each measurement is a process of its own. Every loaded or saved byte is compared with the original,
outside of the timing. GB are 10^9 bytes.

  transformer   a gigabyte in a transformer's shapes: saved, loaded, loaded from a BytesIO, and
                loaded into a module on the meta device; and the bare reads of its file
  small         3,000 tensors of 1 KiB: saved and loaded
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bare.programs import READ
from benchmarks.harness.compare import Scene, compare
from benchmarks.harness.contenders import TINY, Contender, Setting
from benchmarks.harness.libraries import (
    TENSORIZER,
    US,
    Model,
    classic_load,
    classic_load_module,
    classic_save,
    ops_load,
    why_not,
)
from benchmarks.harness.measure import Task, check
from benchmarks.harness.memory import PAGE, State, size_of
from benchmarks.harness.tables import Target
from benchmarks.harness.workloads import CLASSIC, SMALL

REPEATS = 7  # in one process, if a load takes milliseconds
TARGETS = tuple(
    Target(workload, f"us, {work}", factor, (f"tensorizer, {work}",))
    for workload, work, factor in (
        ("transformer", "load", 2.5),
        ("transformer", "save", 2),
        ("transformer", "load_into_module", 2.5),
        ("transformer", "load from a BytesIO", 2),
        ("small", "load", 10),
        ("small", "save", 10),
    )
)


def of_small(setting: Setting) -> Iterator[list[Contender]]:
    paths = write(setting)
    yield [c for name, library in libraries() for c in both(setting, name, library, *paths)]


def of_transformer(setting: Setting) -> Iterator[list[Contender]]:
    path, tiny = write(setting)
    module = setting.directory / "module.tensors"
    ours = importlib.import_module(US.module)
    setting.write(lambda state, at: classic_save(ours, Model(state), at), setting.state, module)
    contents = path.read_bytes()
    found = []
    for label, library in libraries():
        found += both(setting, label, library, path, tiny)
        found += [
            from_buffer(setting, label, library, contents, path, tiny),
            into_module(setting, label, library, module, tiny),
        ]
        if label == "us":
            found.append(setting.limit(READ, path))
    yield found


def from_buffer(
    setting: Setting, label: str, library: Any, contents: bytes, path: Path, tiny: str
) -> Contender:
    """Return a load of bytes in memory: reading the file is not timed."""
    task = Task(
        lambda: classic_load(library, io.BytesIO(contents)),
        lambda loaded: check(loaded, setting.state),
        # Touches every page before the timing.
        lambda: (classic_load(library, tiny), contents[::PAGE]),
    )
    return loading(setting, f"{label}, load from a BytesIO", task, path)


def into_module(setting: Setting, label: str, library: Any, path: Path, tiny: str) -> Contender:
    model = Model(setting.state, "meta")  # every measuring process fills its own copy
    task = Task(
        lambda: classic_load_module(library, str(path), model),
        lambda loaded: check(loaded, setting.state),
        lambda: classic_load(library, tiny),
    )
    return loading(setting, f"{label}, load_into_module", task, path)


def libraries() -> Iterator[tuple[str, Any]]:
    for name, library in (("us", US), ("tensorizer", TENSORIZER)):
        if not why_not(library.module):
            yield name, importlib.import_module(library.module)


def write(setting: Setting) -> tuple[Path, str]:
    """Write the files of the workload and of tiny tensors."""
    setting.directory.mkdir()
    ours = importlib.import_module(US.module)
    path, tiny = (setting.directory / f"{name}.tensors" for name in ("model", "tiny"))
    setting.write(lambda tensors, at: classic_save(ours, tensors, at), setting.state, path)
    setting.write(lambda tensors, at: classic_save(ours, tensors, at), TINY, tiny)
    return path, str(tiny)


def loading(setting: Setting, name: str, task: Task, file: Path) -> Contender:
    size, repeats = size_of(setting.state), REPEATS if setting.repeats > 1 else 1
    return setting.contender(name, size, lambda: task, size, file, repeats)


def both(setting: Setting, label: str, library: Any, path: Path, tiny: str) -> list[Contender]:
    """Return a load and a save."""
    state, size, saved = setting.state, size_of(setting.state), setting.directory / label
    load = Task(
        lambda: classic_load(library, str(path)),
        lambda loaded: check(loaded, state),
        lambda: check(classic_load(library, tiny), TINY),
    )

    def check_saved(_: State) -> None:
        check(ops_load()(str(saved)), state)
        saved.unlink()

    def write_state() -> State:
        classic_save(library, state, str(saved))
        return {}

    save = Task(
        write_state,
        check_saved,
        lambda: classic_save(library, TINY, tiny),
        lambda: saved.unlink(missing_ok=True),
        state,
    )
    repeats = REPEATS if setting.repeats > 1 else 1
    return [
        loading(setting, f"{label}, load", load, path),
        setting.contender(f"{label}, save", size, lambda: save, 2 * size, None, repeats),
    ]


SCENES = {
    "transformer": Scene(CLASSIC.title, CLASSIC, of_transformer),
    "small": Scene(SMALL.title, SMALL, of_small),
}


def main() -> None:
    compare(__doc__, "classic", SCENES, TARGETS)


if __name__ == "__main__":
    main()
