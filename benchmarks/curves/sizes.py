"""Measures loads by the number of tensors in a file, and by its size.

    python -m benchmarks.curves.sizes [--quick] [--gib 20] [--rounds 3] [--json FILE]

Files of 10 to 1,000,000 tensors of 4 elements, and files of 1 MiB to 20 GiB in tensors of up to
32 MiB, without checksums. Every load is a process of its own; the best of the rounds counts. Every
loaded byte is compared with the original, outside of the timing. A library is not measured with
files of which a load would probably take more than a minute.

  mapped   until the call returns; nothing is read
  copy     until the values are in memory of their own

Files are in the page cache, unless they and their tensors do not fit into memory together: then
they come from the disk.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from pathlib import Path

import torch

import tensorizer_ops
from benchmarks.harness import tables
from benchmarks.harness.libraries import (
    Load,
    ops_load,
    safetensors_load,
    tensorizer_load,
    torch_load,
)
from benchmarks.harness.measure import Task, measure, prepare_to_fork
from benchmarks.harness.memory import Failure, Reserve, State, make_warm, system_memory
from benchmarks.harness.results import US, Found, Panel, measured

MIB = 1 << 20
LONGEST = 60.0
LOADS: dict[str, tuple[str, Load]] = {
    f"{US}, mapped": (".tensors", ops_load()),
    f"{US}, copy": (".tensors", ops_load(copy=True)),
    "safetensors, mapped": (".safetensors", safetensors_load),
    "tensorizer": (".tensors", tensorizer_load(None)),
    "torch, load": (".pt", torch_load(mmap=False)),
}
Make = Callable[[int], torch.Tensor]  # makes the tensor of a number


def tensors_of(count: int, make: Make) -> Iterator[tuple[str, torch.Tensor]]:
    return ((f"layers.{i}.weight", make(i)) for i in range(count))


def check(loaded: State, count: int, make: Make) -> None:
    if len(loaded) != count:
        raise Failure(f"{len(loaded)} tensors instead of {count}")
    for name, tensor in tensors_of(count, make):
        if not torch.equal(loaded[name].view(torch.int32), tensor.view(torch.int32)):
            raise Failure(f"{name} has other bytes than were saved")


def write_files(folder: Path, count: int, make: Make, *, all_formats: bool) -> dict[str, Path]:
    """Write a file of each format; but for that of torch, only a tensor at a time is in memory."""
    suffixes = (".tensors", ".safetensors", ".pt") if all_formats else (".tensors",)
    paths = {suffix: folder / f"model{suffix}" for suffix in suffixes}
    for suffix, path in paths.items():
        if suffix == ".pt":
            torch.save(dict(tensors_of(count, make)), path)
            continue
        with tensorizer_ops.Writer(path, hashes="none") as writer:
            for name, tensor in tensors_of(count, make):
                writer[name] = tensor
    return paths


def measure_files(
    panel: Panel, folder: Path, x: float, count: int, make: Make, rounds: int
) -> None:
    """Add the best load of each library from files of `count` tensors."""
    size = make(0).nbytes * count
    # Whether a file and its tensors fit into memory together.
    small = 2.2 * size < system_memory("MemAvailable")
    with tempfile.TemporaryDirectory(dir=folder) as here, tempfile.TemporaryDirectory() as there:
        paths = write_files(Path(here), count, make, all_formats=small)
        tiny = write_files(Path(there), 4, few, all_formats=True)
        gc.collect()
        reserve = Reserve(size if small else MIB)
        for curve, (suffix, load) in LOADS.items():
            points = panel.curves.get(curve, {})
            too_long = any(y * x / before > LONGEST for before, y in points.items())
            if suffix not in paths or too_long:
                continue
            if small:
                make_warm(paths[suffix])
            task = Task(
                partial(load, str(paths[suffix])),
                partial(check, count=count, make=make),
                partial(load, str(tiny[suffix])),
            )
            seconds = (measure(task, reserve, size).seconds for _ in range(rounds))
            panel.add(curve, x, min(seconds))


def few(number: int) -> torch.Tensor:
    return torch.arange(4, dtype=torch.int32) + number


def large(number: int, *, size: int, pattern: torch.Tensor) -> torch.Tensor:
    return pattern[: size // 4] ^ (number + 1)


def measure_all(folder: Path, gibibytes: int, rounds: int) -> Found:
    quick = gibibytes == 0
    numbers = Panel("Files of small tensors, in the page cache", "tensors", "seconds", "xy")
    for count in (10, 1000) if quick else (10, 100, 1000, 10_000, 100_000, 1_000_000):
        measure_files(numbers, folder, count, count, few, rounds)
    sizes = Panel("Files of large tensors", "MiB", "seconds", "xy")
    pattern = torch.empty(32 * MIB // 4, dtype=torch.int32).random_()
    mebibytes = [1, 4, 16] if quick else [1, 4, 16, 64, 256, 1024, 4096, 8192, gibibytes << 10]
    for size in takewhile(lambda size: size <= max(16, gibibytes << 10), mebibytes):
        one = min(size, 32) * MIB
        make = partial(large, size=one, pattern=pattern)
        measure_files(sizes, folder, size, size * MIB // one, make, rounds)
    return {"panels": [numbers, sizes]}


def main() -> None:
    prepare_to_fork()
    for panel in measured(__doc__, ("gib", 20, 0), 3, measure_all, "sizes")["panels"]:
        print(tables.of_panel(panel))


if __name__ == "__main__":
    main()
