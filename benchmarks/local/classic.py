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
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.bare import READ
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
)
from benchmarks.harness.measure import Task, check, saving
from benchmarks.harness.memory import PAGE, State
from benchmarks.harness.workloads import CLASSIC, SMALL

REPEATS = 7  # in one process, if a load takes milliseconds


def of_small(setting: Setting) -> Iterator[list[Contender]]:
    paths = write(setting)
    yield [c for name, library in libraries() for c in both(setting, name, library, *paths)]


def of_transformer(setting: Setting) -> Iterator[list[Contender]]:
    path, tiny = write(setting)
    module = setting.directory / "module.tensors"
    ours = importlib.import_module(US.module)
    setting.write(lambda state, at: classic_save(ours, Model(state), at), module)
    contents = path.read_bytes()
    model = Model(setting.state, "meta")  # every measuring process fills its own copy
    found = []
    for label, library in libraries():
        found += both(setting, label, library, path, tiny)
        # Reading the file is not timed.
        buffer = Task(
            partial(from_buffer, library, contents),
            partial(check, expected=setting.state),
            partial(touch_all, library, tiny, contents),
        )
        into = Task(
            partial(classic_load_module, library, str(module), model),
            partial(check, expected=setting.state),
            partial(classic_load, library, tiny),
        )
        found.append(setting.performs(f"{label}, load from a BytesIO", buffer, path))
        found.append(setting.performs(f"{label}, load_into_module", into, module))
        if label == "us":
            found.append(setting.limit(READ, path))
    yield found


def from_buffer(library: Any, contents: bytes) -> State:
    return classic_load(library, io.BytesIO(contents))


def touch_all(library: Any, tiny: str, contents: bytes) -> bytes:
    """Warm up, and touch every page of bytes before the timing."""
    classic_load(library, tiny)
    return contents[::PAGE]


def libraries() -> Iterator[tuple[str, Any]]:
    for name, library in (("us", US), ("tensorizer", TENSORIZER)):
        yield name, importlib.import_module(library.module)


def write(setting: Setting) -> tuple[Path, str]:
    """Write the files of the workload and of tiny tensors."""
    save = partial(classic_save, importlib.import_module(US.module))
    tiny = setting.write(save, setting.directory / "tiny.tensors", TINY)
    return setting.write(save, setting.directory / "model.tensors"), str(tiny)


def both(setting: Setting, label: str, library: Any, path: Path, tiny: str) -> list[Contender]:
    """Return a load and a save."""
    load = Task(
        partial(classic_load, library, str(path)),
        partial(check, expected=setting.state),
        lambda: check(classic_load(library, tiny), TINY),
    )
    save = saving(
        *(partial(classic_save, library), ops_load(), setting.state),
        *(setting.directory / label, partial(classic_save, library, TINY, tiny)),
    )
    repeats = REPEATS if setting.repeats > 1 else 1
    return [
        setting.performs(f"{label}, load", load, path, repeats),
        setting.performs(f"{label}, save", save, None, repeats),
    ]


def main() -> None:
    scenes = {
        "transformer": Scene("a gigabyte in a transformer's shapes", CLASSIC, of_transformer),
        "small": Scene("3,000 tensors of 1 KiB", SMALL, of_small),
    }
    compare(__doc__, "classic", scenes)


if __name__ == "__main__":
    main()
