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

from collections.abc import Callable
from pathlib import Path

import torch

import tensorizer_ops
from benchmarks.harness import tables
from benchmarks.harness.libraries import safetensors_load
from benchmarks.harness.memory import State
from benchmarks.harness.results import Best, Found, measured


def measure(folder: Path, tensors: int, rounds: int) -> Found:
    values = torch.arange(tensors * 4, dtype=torch.float32).view(-1, 4)
    state = {f"layers.{i}.weight": row for i, row in enumerate(values.unbind())}
    middle = f"layers.{tensors // 2}.weight"
    best = Best()

    def load(name: str, work: Callable[[], State], names: list[str]) -> None:
        loaded = best.time(name, work)
        assert all(torch.equal(loaded[one], state[one]) for one in names)

    def measure_file(file: Path, end: str) -> None:
        some = list(state)[::1000]
        load(f"one, {end}", lambda: tensorizer_ops.load(file, names=[middle]), [middle])
        load(f"all, {end}", lambda: tensorizer_ops.load(file, copy=True), some)
        if end == "safetensors":
            load("theirs", lambda: safetensors_load(str(file)), some)
        best.time("bare", lambda: {name: torch.empty(4) for name in state})

    for end in ("tensors", "safetensors"):
        file = folder / f"m.{end}"
        tensorizer_ops.save(file, state, hashes="none")
        for _ in range(rounds):
            measure_file(file, end)
    return {"tensors": tensors, "seconds": best}


def main() -> None:
    found = measured(__doc__, ("tensors", 1_000_000, 2000), 3, measure, "many")
    print(tables.of_seconds(found["seconds"], 16 * found["tensors"]))


if __name__ == "__main__":
    main()
