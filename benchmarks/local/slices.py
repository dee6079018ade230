"""Compares loads of slices with the bare copy of their bytes, and with loads of whole tensors.

    python -m benchmarks.local.slices [--quick] [--rounds 5] [--directory DIRECTORY] [--json FILE]

One float32 matrix with rows of 256 KiB is saved, and columns that are 1/8 of it are loaded, in runs
of 32 KiB. A round measures everything once; ratios are those of the best times. Every loaded slice
is compared with the matrix, outside of the timing.

  columns   from a warm file: against the limit program, which reads the same runs with pread
  rows      half of them, copied from a warm file: bytes per second, against those of the whole
            matrix
  near      1/8 of the columns of a quarter of the data with rows of 4 KiB, from nginx on this
            machine: the gaps between runs are smaller than a request is worth. The time against
            that of the whole
  far       the same with rows of 4 MiB, where the gaps are larger: the bytes that the server sends
            against those needed
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tensorizer_ops
from benchmarks.bare import programs as bare
from benchmarks.harness import tables as report
from benchmarks.harness.best import THREADS, Best, Results, measured
from benchmarks.harness.memory import Reserve
from benchmarks.harness.servers import web_server

COLUMNS = 65_536
NEAR_COLUMNS = COLUMNS // 64
FAR_COLUMNS = COLUMNS * 16
# The parts of the other speed that are to be reached.
GOALS = {"columns": 0.8, "rows": 0.9, "near, speed of the whole": 1.0}
MOST_RECEIVED = 1.1


def part_of(columns: int) -> tuple[slice, slice]:
    return (slice(None), slice(columns // 4, columns // 4 + columns // 8))


PART = part_of(COLUMNS)


def seconds_of(load: Callable[[], torch.Tensor], expected: torch.Tensor, reserve: Reserve) -> float:
    reserve.lend(expected.nbytes)
    begin = time.perf_counter()
    loaded = load()
    seconds = time.perf_counter() - begin
    assert torch.equal(loaded, expected)
    del loaded
    reserve.take_back()
    return seconds


def bare_columns(
    programs: Path, file: Path, matrix: torch.Tensor, reserve: Reserve
) -> Callable[[], float]:
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
        reserve.lend(matrix.nbytes // 8)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        reserve.take_back()
        return float(json.loads(done.stdout)["seconds"][0])

    return measure


def received(uri: str, columns: int) -> tuple[int, int]:
    """Return the bytes and the requests that a server is asked for by a load of a slice."""
    reader = torch.classes.tensorizer.Reader(uri, None)
    reader.names()
    before = reader.stats()
    tensorizer_ops.load_slices(reader, {"m": part_of(columns)})
    after = reader.stats()
    return (after["received"] - before["received"], after["requests"] - before["requests"])


def measure(folder: Path, rows: int, rounds: int) -> Results:
    matrix = torch.empty(rows, COLUMNS)
    matrix.view(torch.int32).random_()
    matrix.view(torch.int32).bitwise_and_(0x3FFFFFFF)  # no NaN, which is not equal to itself
    quarter = matrix[: rows // 4]
    near, far = quarter.view(-1, NEAR_COLUMNS), quarter.view(-1, FAR_COLUMNS)
    with web_server(folder / "web") as web:
        for name, saved in (("m", matrix), ("near", near), ("far", far)):
            tensorizer_ops.save(web.root / f"{name}.tensors", {"m": saved}, hashes="none")
        file = web.root / "m.tensors"
        near_uri, far_uri = web.url("near.tensors"), web.url("far.tensors")
        half = (slice(rows // 4, rows // 4 + rows // 2),)

        def load(place: Any, index: Any = None) -> Callable[[], torch.Tensor]:
            slices = None if index is None else {"m": index}
            return lambda: tensorizer_ops.load(place, slices=slices, copy=True)["m"]

        reserve = Reserve(matrix.nbytes)
        bare_read = bare_columns(folder / "programs", file, matrix, reserve)
        near_part, far_part = part_of(NEAR_COLUMNS), part_of(FAR_COLUMNS)
        loads = (
            ("columns", load(file, PART), matrix[PART]),
            ("whole", load(file), matrix),
            ("rows", load(file, half), matrix[half]),
            ("http near whole", load(near_uri), near),
            ("http near", load(near_uri, near_part), near[near_part]),
            ("http far whole", load(far_uri), far),
            ("http far", load(far_uri, far_part), far[far_part]),
        )
        best = Best()
        for _ in range(rounds):
            best.keep("bare columns", bare_read())
            for name, work, expected in loads:
                best.keep(name, seconds_of(work, expected, reserve))
        near_bytes, near_requests = received(near_uri, NEAR_COLUMNS)
        far_bytes, far_requests = received(far_uri, FAR_COLUMNS)
    return {
        "seconds": best,
        "bytes": matrix.nbytes,
        "requests near": near_requests,
        "requests far": far_requests,
        "near, received against needed": near_bytes / (near.nbytes // 8),
        "far, received against needed": far_bytes / (far.nbytes // 8),
        "far, speed of the whole": best["http far whole"] / best["http far"],
        "columns": best["bare columns"] / best["columns"],
        "rows": best["whole"] / 2 / best["rows"],
        "near, speed of the whole": best["http near whole"] / best["http near"],
    }


def main() -> None:
    found = measured(__doc__, ("rows", 16_384, 64), 5, measure)
    lines = [[name, f"{seconds * 1000:.1f} ms"] for name, seconds in found["seconds"].items()]
    print(report.table(["load", "best"], lines, 1, markdown=False) + "\n")
    goals = [[name, f"{found[name]:.2f}", f">= {goal}"] for name, goal in GOALS.items()]
    sent = "far, received against needed"
    goals.append([sent, f"{found[sent]:.2f}", f"<= {MOST_RECEIVED}"])
    print(report.table(["ratio", "found", "goal"], goals, 1, markdown=False))


if __name__ == "__main__":
    main()
