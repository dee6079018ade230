"""Compares verified loads and saves of one large tensor with those of many, and with bare hashing.

    python -m benchmarks.local.chunks [--quick] [--rounds 5] [--directory DIRECTORY] [--json FILE]

Three models of the same size are saved with digests of chunks: `even` has tensors of 32 MiB,
`quarter` a quarter of its bytes in one tensor and the rest in tensors of 32 MiB, and `single` has
one tensor. A round measures everything once, from warm files; ratios are those of the best times.
Every loaded tensor is compared with the saved one, outside of the timing.

  save      with hashes="chunked"
  copy      load(copy=True, verify="all")
  mapped    load(verify="all"), which maps the file
  verify    verify(), which keeps nothing
  libcrypto SHA-256 of memory by libcrypto, one message per thread, on all threads
  bare      pread into fresh memory, or pwrite, of one large tensor, with the SHA-256 of its chunks
            (benchmarks/limit.cpp): the bounds of `copy` and `save`
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import tensorizer_ops
from benchmarks.harness import tables
from benchmarks.harness.bare import READ_LANES, WRITE_LANES, run_limit
from benchmarks.harness.memory import Reserve, settle
from benchmarks.harness.results import THREADS, Best, Found, measured


def sizes_of(total: int) -> dict[str, list[int]]:
    even = min(32 << 20, total // 16)
    return {
        "even": [even] * (total // even),
        "quarter": [total // 4] + [even] * (3 * total // 4 // even),
        "single": [total],
    }


def hash_all(best: Best, memory: torch.Tensor) -> None:
    parts = [part.numpy() for part in memory.chunk(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda part: hashlib.sha256(part[:1000]), parts))  # starts the threads
        best.time("libcrypto", lambda: list(pool.map(hashlib.sha256, parts)))


def measure_model(
    best: Best, file: Path, name: str, tensors: dict[str, torch.Tensor], reserve: Reserve
) -> None:
    def with_memory(what: str, work: Callable[[], Any]) -> Any:
        """The work takes memory of the size of the model, for tensors or for the page cache."""
        settle()
        reserve.lend(sum(tensor.nbytes for tensor in tensors.values()))
        result = best.time(f"{what} {name}", work)
        reserve.take_back()
        return result

    def check(loaded: dict[str, torch.Tensor]) -> None:
        assert all(torch.equal(loaded[key], tensor) for key, tensor in tensors.items())

    with_memory("save", lambda: tensorizer_ops.save(file, tensors, hashes="chunked"))
    check(with_memory("copy", lambda: tensorizer_ops.load(file, verify="all", copy=True)))
    check(best.time(f"mapped {name}", lambda: tensorizer_ops.load(file, verify="all", copy=False)))
    if name == "single":
        for limit, what in ((READ_LANES, "read"), (WRITE_LANES, "write")):
            settle()
            best.keep(f"bare {what}", run_limit(limit, file, reserve, 3).seconds)
    best.time(f"verify {name}", lambda: torch.ops.tensorizer.verify(str(file)))
    file.unlink()


def measure(folder: Path, mib: int, rounds: int) -> Found:
    total = mib << 20
    memory = torch.randint(0, 256, (total,), dtype=torch.uint8)
    models = {
        name: {f"t{i}": part for i, part in enumerate(memory.split(sizes))}
        for name, sizes in sizes_of(total).items()
    }
    best, reserve = Best(), Reserve(2 * total)
    for _ in range(rounds):
        hash_all(best, memory)
        for name, tensors in models.items():
            measure_model(best, folder / f"{name}.tensors", name, tensors, reserve)
    ratios = {
        f"{what} {name}": best[f"{what} even"] / best[f"{what} {name}"]
        for what in ("save", "copy", "mapped", "verify")
        for name in ("single", "quarter")
    }
    ratios["mapped, of libcrypto"] = best["libcrypto"] / best["mapped single"]
    ratios["copy, of the bare work"] = best["bare read"] / best["copy single"]
    ratios["save, of the bare work"] = best["bare write"] / best["save single"]
    return {"bytes": total, "seconds": best, "ratios": ratios}


def main() -> None:
    found = measured(__doc__, ("mib", 2048, 32), 5, measure, "chunks")
    print(tables.of_seconds(found["seconds"], found["bytes"]))
    print(tables.of_ratios(found["ratios"]))


if __name__ == "__main__":
    main()
