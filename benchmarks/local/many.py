"""Measures loads from files of very many tensors.

    python -m benchmarks.local.many [--quick] [--rounds 3] [--directory DIRECTORY] [--json FILE]

A file has 1,000,000 float32 tensors of 4 elements. A round measures everything once, from warm
files; the best times count. Loaded tensors are compared with the saved ones, outside of the timing.

  one       load(names=[...]) of the tensor in the middle
  all       load(copy=True)
  theirs    safetensors' load_file, of the safetensors file
  bare      a dict with as many results of torch.empty
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch

import tensorizer_ops
from benchmarks.harness import tables
from benchmarks.harness.memory import State
from benchmarks.harness.results import Best, Found, measured

SHAPE = (4,)


def seconds_of(load: Callable[[], State], expected: State) -> float:
    begin = time.perf_counter()
    loaded = load()
    seconds = time.perf_counter() - begin
    for name, tensor in expected.items():
        assert torch.equal(loaded[name], tensor), name
    return seconds


def measure(folder: Path, tensors: int, rounds: int) -> Found:
    values = torch.arange(tensors * SHAPE[0], dtype=torch.float32).view(-1, *SHAPE)
    state = {f"layers.{i}.weight": row for i, row in enumerate(values.unbind())}
    middle = f"layers.{tensors // 2}.weight"
    one, some = {middle: state[middle]}, {name: state[name] for name in list(state)[::1000]}
    best = Best()
    for end in ("tensors", "safetensors"):
        file = folder / f"m.{end}"
        tensorizer_ops.save(file, state, hashes="none")
        for _ in range(rounds):
            loads: dict[str, tuple[Callable[[], State], State]] = {
                f"one, {end}": (lambda: tensorizer_ops.load(file, names=[middle]), one),  # noqa: B023
                f"all, {end}": (lambda: tensorizer_ops.load(file, copy=True), some),  # noqa: B023
            }
            if end == "safetensors":
                loads["theirs"] = (lambda: safetensors.torch.load_file(file), some)  # noqa: B023
            for name, (load, expected) in loads.items():
                best.keep(name, seconds_of(load, expected))
            begin = time.perf_counter()
            empty = {name: torch.empty(SHAPE) for name in state}
            best.keep("bare", time.perf_counter() - begin)
            del empty
    return {"tensors": tensors, "seconds": best}


def main() -> None:
    found = measured(__doc__, ("tensors", 1_000_000, 2000), 3, measure, "many")
    print(tables.of_seconds(found["seconds"], 16 * found["tensors"]))


if __name__ == "__main__":
    main()
