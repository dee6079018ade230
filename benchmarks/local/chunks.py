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
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import tensorizer_ops
from benchmarks.bare.programs import READ_LANES, WRITE_LANES, Program
from benchmarks.harness import tables
from benchmarks.harness.memory import Reserve, settle
from benchmarks.harness.results import THREADS, Best, Found, measured

EVEN = 32 << 20
WORK = ("save", "copy", "mapped", "verify")
# What large tensors are to reach of the speed of `even`, of the bare work, and of libcrypto.
GOALS = {f"{work} {name}": 0.95 for work in WORK for name in ("single", "quarter")}
GOALS |= {"mapped, of libcrypto": 0.9, "copy, of the bare work": 0.95}
GOALS |= {"save, of the bare work": 0.95}


def sizes_of(total: int) -> dict[str, list[int]]:
    even = min(EVEN, total // 16)
    return {
        "even": [even] * (total // even),
        "quarter": [total // 4] + [even] * (3 * total // 4 // even),
        "single": [total],
    }


def seconds_of(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def libcrypto_seconds(memory: torch.Tensor) -> float:
    parts = [part.numpy() for part in memory.chunk(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda part: hashlib.sha256(part[:1000]), parts))  # starts the threads
        return seconds_of(lambda: list(pool.map(hashlib.sha256, parts)))[0]


def measure(folder: Path, mib: int, rounds: int) -> Found:
    total = mib << 20
    memory = torch.randint(0, 256, (total,), dtype=torch.uint8)
    models = {
        name: {f"t{i}": part for i, part in enumerate(memory.split(sizes))}
        for name, sizes in sizes_of(total).items()
    }
    best = Best()
    reserve = Reserve(2 * total)

    def seconds_with_memory(work: Callable[[], Any]) -> tuple[float, Any]:
        """The work takes memory of the size of the model, for tensors or for the page cache."""
        settle()
        reserve.lend(total)
        seconds, result = seconds_of(work)
        reserve.take_back()
        return seconds, result

    for _ in range(rounds):
        best.keep("libcrypto", libcrypto_seconds(memory))
        for name, tensors in models.items():
            file = folder / f"{name}.tensors"
            file.unlink(missing_ok=True)
            save = lambda: tensorizer_ops.save(file, tensors, hashes="chunked")  # noqa: B023, E731
            best.keep(f"save {name}", seconds_with_memory(save)[0])
            for copy, what in ((True, "copy"), (False, "mapped")):
                load = lambda: tensorizer_ops.load(file, verify="all", copy=copy)  # noqa: B023, E731
                seconds, loaded = (seconds_with_memory if copy else seconds_of)(load)
                assert all(torch.equal(loaded[key], tensor) for key, tensor in tensors.items())
                del loaded
                best.keep(f"{what} {name}", seconds)
            if name == "single":
                program = Program(file)
                for limit, what in ((READ_LANES, "read"), (WRITE_LANES, "write")):
                    settle()
                    best.keep(f"bare {what}", program.measure(limit, 3, reserve).seconds)
            verify = lambda: torch.ops.tensorizer.verify(str(file))  # noqa: B023, E731
            best.keep(f"verify {name}", seconds_of(verify)[0])
            file.unlink()
    ratios = {
        f"{what} {name}": best[f"{what} even"] / best[f"{what} {name}"]
        for what in WORK
        for name in ("single", "quarter")
    }
    ratios["mapped, of libcrypto"] = best["libcrypto"] / best["mapped single"]
    ratios["copy, of the bare work"] = best["bare read"] / best["copy single"]
    ratios["save, of the bare work"] = best["bare write"] / best["save single"]
    return {"bytes": total, "seconds": best, "ratios": ratios}


def main() -> None:
    found = measured(__doc__, ("mib", 2048, 32), 5, measure, "chunks")
    print(tables.of_seconds(found["seconds"], found["bytes"]))
    print(tables.of_ratios(found["ratios"], GOALS))


if __name__ == "__main__":
    main()
