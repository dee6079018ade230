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

from functools import partial
from pathlib import Path
from typing import Any

import torch

import tensorizer_ops
from benchmarks.harness import tables
from benchmarks.harness.bare import Limit, data_ranges, run_limit
from benchmarks.harness.memory import Reserve
from benchmarks.harness.results import Best, Found, measured
from benchmarks.harness.servers import web_server

COLUMNS = 65_536
NEAR_COLUMNS = COLUMNS // 64
FAR_COLUMNS = COLUMNS * 16


def part_of(columns: int) -> tuple[slice, slice]:
    return (slice(None), slice(columns // 4, columns // 4 + columns // 8))


def bare_columns(file: Path, rows: int, reserve: Reserve) -> float:
    """Return the seconds of the bare reads of all runs into fresh memory."""
    ((data, _),) = data_ranges(file)
    row, run = COLUMNS * 4, COLUMNS // 8 * 4
    runs = [(data + COLUMNS // 4 * 4 + i * row, run) for i in range(rows)]
    return run_limit(Limit("", "read", run), file, reserve, ranges=runs).ready


def received(uri: str, matrix: torch.Tensor) -> float:
    """Return the bytes that a server is asked for by a load of a slice, of those needed."""
    part = part_of(matrix.shape[1])
    reader = torch.classes.tensorizer.Reader(uri, None)
    reader.names()
    before = reader.stats()["received"]
    loaded = tensorizer_ops.load_slices(reader, {"m": part})["m"]
    assert torch.equal(loaded, matrix[part])
    return float((reader.stats()["received"] - before) / loaded.nbytes)


def measure(folder: Path, rows: int, rounds: int) -> Found:
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

        best, reserve = Best(), Reserve(matrix.nbytes)

        def load(name: str, place: Any, whole: torch.Tensor, index: Any = ()) -> None:
            expected = whole[index]
            reserve.lend(expected.nbytes)
            slices = {"m": index} if index else None
            load_slices = partial(tensorizer_ops.load, place, slices=slices, copy=True)
            assert torch.equal(best.time(name, load_slices)["m"], expected)
            reserve.take_back()

        for _ in range(rounds):
            best.keep("bare columns", bare_columns(file, rows, reserve))
            load("columns", file, matrix, part_of(COLUMNS))
            load("whole", file, matrix)
            load("rows", file, matrix, half)
            load("http near whole", near_uri, near)
            load("http near", near_uri, near, part_of(NEAR_COLUMNS))
        by_near, by_far = received(near_uri, near), received(far_uri, far)
    return {
        "seconds": best,
        "bytes": matrix.nbytes,
        "near, received against needed": by_near,
        "far, received against needed": by_far,
        "columns": best["bare columns"] / best["columns"],
        "rows": best["whole"] / 2 / best["rows"],
        "near, speed of the whole": best["http near whole"] / best["http near"],
    }


def main() -> None:
    found = measured(__doc__, ("rows", 16_384, 64), 5, measure, "slices")
    print(tables.of_seconds(found.pop("seconds"), found.pop("bytes")))
    print(tables.of_ratios(found))


if __name__ == "__main__":
    main()
