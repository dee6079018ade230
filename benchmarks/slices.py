"""Compares loads of slices with the bare copy of their bytes, and with loads of whole tensors.

    python benchmarks/slices.py [--quick] [--rounds 7] [--directory DIRECTORY] [--json FILE]

One float32 matrix with rows of 256 KiB is saved, and columns that are 1/8 of it are loaded, in runs
of 32 KiB. A round measures everything once; ratios are those of the best times. GB are 10^9 bytes
of the slice. Every loaded slice is compared with the matrix, outside of the timing.

  columns   from a warm file: against the limit program, which reads the same runs with pread
  rows      half of them, copied from a warm file: GB/s, against those of the whole matrix
  http      the columns from nginx on this machine: the bytes that it sends against those needed,
            and the time against that of the whole matrix
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import bare
import report
from best import Best, Results, measured
from servers import web_server

sys.path.append(str(Path(__file__).resolve().parent.parent))

import tensorizer_ops

COLUMNS = 65_536
PART = (slice(None), slice(COLUMNS // 4, COLUMNS // 4 + COLUMNS // 8))
THREADS = len(os.sched_getaffinity(0))
# The parts of the other speed that are to be reached.
GOALS = {"columns": 0.8, "rows": 0.9, "http, speed of the whole": 1.0}
MOST_RECEIVED = 1.1


def seconds_of(load: Callable[[], torch.Tensor], expected: torch.Tensor) -> float:
    begin = time.perf_counter()
    loaded = load()
    seconds = time.perf_counter() - begin
    assert torch.equal(loaded, expected)
    return seconds


def bare_columns(programs: Path, file: Path, matrix: torch.Tensor) -> Callable[[], float]:
    """Return a measurement of the bare reads of all runs into fresh memory."""
    ((data, _),) = bare.data_ranges(file)
    row, run = COLUMNS * 4, COLUMNS // 8 * 4
    runs = file.with_suffix(".runs")
    begin = data + COLUMNS // 4 * 4
    runs.write_text("".join(f"{begin + i * row} {run}\n" for i in range(matrix.shape[0])))
    command = [str(bare.build(programs, "limit")), "read", str(file), str(runs)]
    command += ["--threads", str(THREADS), "--piece", str(run), "--repeat", "1"]
    command += ["--output", str(file.with_name("limit.out"))]

    def measure() -> float:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(json.loads(done.stdout)["seconds"][0])

    return measure


def measure(folder: Path, rows: int, rounds: int) -> Results:
    matrix = torch.empty(rows, COLUMNS)
    matrix.view(torch.int32).random_()
    matrix.view(torch.int32).bitwise_and_(0x3FFFFFFF)  # no NaN, which is not equal to itself
    with web_server(folder / "web") as web:
        file = web.root / "m.tensors"
        tensorizer_ops.save(file, {"m": matrix}, hashes="none")
        half = (slice(rows // 4, rows // 4 + rows // 2),)
        uri = web.url(file.name)

        def load(place: Any, index: Any = None) -> Callable[[], torch.Tensor]:
            slices = None if index is None else {"m": index}
            return lambda: tensorizer_ops.load(place, slices=slices, copy=True)["m"]

        bare_read = bare_columns(folder / "programs", file, matrix)
        best = Best()
        for _ in range(rounds):
            for name, seconds in (
                ("bare columns", bare_read()),
                ("columns", seconds_of(load(file, PART), matrix[PART])),
                ("whole", seconds_of(load(file), matrix)),
                ("rows", seconds_of(load(file, half), matrix[half])),
                ("http columns", seconds_of(load(uri, PART), matrix[PART])),
                ("http whole", seconds_of(load(uri), matrix)),
            ):
                best.keep(name, seconds)
        reader = torch.classes.tensorizer.Reader(uri, None)
        reader.names()
        before = reader.stats()
        tensorizer_ops.load_slices(reader, {"m": PART})
        after = reader.stats()
    needed = matrix.nbytes // 8
    return {
        "seconds": best,
        "requests": after["requests"] - before["requests"],
        "received against needed": (after["received"] - before["received"]) / needed,
        "columns": best["bare columns"] / best["columns"],
        "rows": best["whole"] / 2 / best["rows"],
        "http, speed of the whole": best["http whole"] / best["http columns"],
        "bytes": needed,
    }


def main() -> None:
    found = measured(__doc__, ("rows", 4096, 64), 7, measure)
    lines = [[name, f"{seconds * 1000:.1f} ms"] for name, seconds in found["seconds"].items()]
    print(report.table(["load", "best"], lines, 1, markdown=False) + "\n")
    goals = [[name, f"{found[name]:.2f}", f">= {goal}"] for name, goal in GOALS.items()]
    received = "received against needed"
    goals.append([received, f"{found[received]:.2f}", f"<= {MOST_RECEIVED}"])
    print(report.table(["ratio", "found", "goal"], goals, 1, markdown=False))
    print(f"\nrequests of the columns by http: {found['requests']:.0f}")


if __name__ == "__main__":
    main()
