"""Compares attestations of weights in memory with verified loads of them.

    python -m benchmarks.local.attest [--quick] [--rounds 9] [--directory DIRECTORY] [--json FILE]

  names    each tensor is as in the file: it is compared with the digests of its chunks
  digests  the same through a loader, as those below
  rows     each tensor is a part of the first dimension
  columns  each tensor is a part of the last dimension: all of the part is loaded
  cast     each tensor has another type than in the file: all of it is loaded

A round does each, and loads the same parts, verified; ratios are medians over the rounds. SHA-256
alone is of all tensors in memory.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import tensorizer_ops
from benchmarks.harness import tables
from benchmarks.harness.results import Found, measured

Part = tuple[slice, slice]
ALL, HALF = slice(None), slice(1000, 3048)


class Model(torch.nn.Module):
    """Has a part of each tensor."""

    def __init__(self, part: Part, dtype: torch.dtype, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.part = part
        for name, tensor in tensors.items():
            own = torch.nn.Parameter(tensor[part].to(dtype).contiguous(), requires_grad=False)
            self.register_parameter(name, own)

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            getattr(self, name).data.copy_(weight[self.part])


def measure(folder: Path, large: int, rounds: int) -> Found:
    tensors = {f"t{i}": torch.randn(4096, 4096).bfloat16() for i in range(large)}
    size = sum(tensor.nbytes for tensor in tensors.values())
    file = folder / "m.tensors"
    tensorizer_ops.save(file, tensors)
    ways = {
        "names": ((ALL, ALL), torch.bfloat16),
        "digests": ((ALL, ALL), torch.bfloat16),
        "rows": ((HALF, ALL), torch.bfloat16),
        "columns": ((ALL, HALF), torch.bfloat16),
        "cast": ((ALL, ALL), torch.float32),
    }
    seconds: dict[str, list[float]] = {"SHA-256 alone": []}
    sha256 = functools.partial(torch.ops.tensorizer.sha256_chunks, chunk=1 << 20)
    with ThreadPoolExecutor() as pool:
        for _ in range(rounds):
            begin = time.perf_counter()
            list(pool.map(sha256, tensors.values()))
            seconds["SHA-256 alone"].append(time.perf_counter() - begin)
    for way, (part, dtype) in ways.items():
        model = Model(part, dtype, tensors)
        slices = dict.fromkeys(tensors, part) if part != (ALL, ALL) else None
        for _ in range(rounds):
            begin = time.perf_counter()
            load_weights = None if way == "names" else model.load_weights
            found = tensorizer_ops.attest(model, file, load_weights=load_weights)
            attested = time.perf_counter()
            assert found.equal and len(found.compared) == len(tensors)
            tensorizer_ops.load(file, verify="all", slices=slices, dtype=dtype, copy=True)
            loaded = time.perf_counter()
            seconds.setdefault(f"{way}, attest", []).append(attested - begin)
            seconds.setdefault(f"{way}, load", []).append(loaded - attested)
    ratios = {
        f"{way}, attest against a load": statistics.median(
            a / b for a, b in zip(seconds[f"{way}, attest"], seconds[f"{way}, load"], strict=True)
        )
        for way in ways
    }
    medians = {way: statistics.median(found) for way, found in seconds.items()}
    speeds = {
        f"{way}, GB/s": size / medians[way] / 1e9 for way in ("names, attest", "SHA-256 alone")
    }
    return {"seconds": medians, "bytes": size, **ratios, **speeds}


def main() -> None:
    found = measured(__doc__, ("large", 32, 2), 9, measure, "attest")
    print(tables.of_seconds(found.pop("seconds"), found.pop("bytes")))
    print(tables.of_ratios(found))


if __name__ == "__main__":
    main()
