"""Compares loads of files that are not in the page cache, and saves to stable storage, with fio.

    python -m benchmarks.local.cold [--quick] [--rounds 5] [--directory DIRECTORY] [--json FILE]

DIRECTORY must be on a disk. A round measures everything once; the best times count, and ratios are
those of the best. All loads are by copy, and every loaded byte is compared with the original,
outside of the timing.

  fio       reads and writes around the page cache (--direct=1): the best of several block sizes,
            depths and numbers of jobs; writes end with a flush
  pread     reads through the page cache into fresh memory: the best of several numbers of threads
  buffered, direct    load(options={"io": ...})
  auto      load(copy=True)
  foreign   a file of the safetensors library, whose tensors begin anywhere, with "direct"
  pwrite    writes through the page cache and a flush: the best of several numbers of threads
  save      save(hashes="none", options={"fsync": "true"})

The first file that is written in a round counts for nothing: hypervisors take free memory back, and
the first use of each page of a guest then takes longer than writing it to a disk.

The seconds of CPU are those of this process.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import tensorizer_ops
from benchmarks.harness import tables
from benchmarks.harness.memory import make_cold
from benchmarks.harness.results import Best, Found, measured

TENSOR = 64 << 20
PIECE = 4 << 20
THREADS = (2, 8, 16)
# Block size, depth, and number of jobs.
FIO = (("1M", 8, 1), ("4M", 4, 1), ("512k", 32, 1), ("1M", 4, 4), ("4M", 1, 8), ("8M", 1, 16))


def fio(file: Path, size: int, what: str) -> float:
    """Return the seconds of the best way to read or write so many bytes."""
    seconds = []
    for block, depth, jobs in FIO:
        given = {
            "name": "fio",
            "filename": file,
            "rw": what,
            "bs": block,
            "iodepth": depth,
            "numjobs": jobs,
            "size": size // jobs,
            "offset_increment": size // jobs,
            "ioengine": "io_uring" if depth > 1 else "psync",
            "direct": 1,
            "group_reporting": 1,
            "output-format": "json",
            **({"end_fsync": 1} if what == "write" else {}),
        }
        command = ["fio", *(f"--{name}={value}" for name, value in given.items())]
        if what == "read":
            command.append("--readonly")
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        job = json.loads(done.stdout)["jobs"][0]
        assert not job["error"] and job[what]["io_bytes"] >= size // jobs * jobs
        seconds.append(job[what]["runtime"] / 1000)  # with the flush
        if what == "write":  # a file that is there is written in less time than a new one
            file.unlink()
    return float(min(seconds))


def pread(file: Path, size: int, threads: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(memory)
    with file.open("rb", buffering=0) as opened, ThreadPoolExecutor(threads) as pool:
        read = lambda at: os.preadv(opened.fileno(), [view[at : at + PIECE]], at)  # noqa: E731
        assert sum(pool.map(read, range(0, size, PIECE))) == size
    view.release()
    return memory


def pwrite(file: Path, pieces: list[Any], threads: int) -> None:
    """Write a file, and flush it."""
    with file.open("wb", buffering=0) as opened, ThreadPoolExecutor(threads) as pool:
        write = lambda i: os.pwrite(opened.fileno(), pieces[i], i * PIECE)  # noqa: E731
        assert sum(pool.map(write, range(len(pieces)))) == len(pieces) * PIECE
        os.fdatasync(opened.fileno())


def measure(folder: Path, mib: int, rounds: int) -> Found:
    total = mib << 20
    tensors = {
        f"t{i}": torch.randint(0, 256, (TENSOR,), dtype=torch.uint8) for i in range(mib // 64)
    }
    # A tensor of three bytes lets the others begin anywhere.
    foreign = {"a": torch.ones(3, dtype=torch.uint8), **tensors}
    ours, theirs, scratch = (folder / name for name in ("m.tensors", "m.safetensors", "fio"))
    tensorizer_ops.save(ours, tensors, hashes="none")
    save_file(foreign, theirs)
    pieces = [piece.numpy() for tensor in tensors.values() for piece in tensor.split(PIECE)]
    best, cpu = Best(), Best()

    def cold(name: str, file: Path, work: Callable[[], Any]) -> Any:
        make_cold(file)
        before = time.process_time()
        result = best.time(name, work)
        cpu.keep(name, time.process_time() - before)
        return result

    def load(name: str, file: Path, **how: Any) -> None:
        loaded = cold(name, file, lambda: tensorizer_ops.load(file, **how))
        assert all(torch.equal(loaded[key], tensor) for key, tensor in tensors.items())

    save = partial(tensorizer_ops.save, hashes="none", options={"fsync": "true"})
    for _ in range(rounds):
        make_cold(ours)
        best.keep("fio read", fio(ours, total, "read"))
        for threads in THREADS:
            cold("pread", ours, partial(pread, ours, total, threads)).close()
        load("buffered", ours, options={"io": "buffered"})
        load("direct", ours, options={"io": "direct"})
        load("auto", ours, copy=True)
        load("foreign", theirs, options={"io": "direct"})
        pwrite(scratch, pieces, 2)
        scratch.unlink()
        for threads in (1, 2):
            best.time("pwrite", partial(pwrite, scratch, pieces, threads))
            scratch.unlink()
        saved = folder / "saved.tensors"
        best.time("save", partial(save, saved, tensors))
        saved.unlink()
        best.keep("fio write", fio(scratch, total, "write"))
    ratios = {
        f"{ours}, of {limit.split()[0]}": best[limit] / best[ours]
        for ours, limit in (
            *product(("direct", "foreign"), ("fio read", "pread")),
            ("buffered", "pread"),
            ("auto", "pread"),
            ("save", "fio write"),
            ("save", "pwrite"),
        )
    }
    return {"bytes": total, "seconds": best, "cpu": cpu, "ratios": ratios}


def main() -> None:
    found = measured(__doc__, ("mib", 3072, 128), 5, measure, "cold")
    print(tables.of_seconds(found["seconds"], found["bytes"], found["cpu"]))
    print(tables.of_ratios(found["ratios"]))


if __name__ == "__main__":
    main()
