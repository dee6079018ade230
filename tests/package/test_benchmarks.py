"""The benchmarks with small files, on the simulated device and against local servers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.memory import private_memory
from support.process import ROOT, TIMEOUT, environment, run_python, warm_python

pytestmark = pytest.mark.slow

RUN = """
import runpy, sys
from support import sim_device
sim_device.set_lazy(False)
sim_device.set_codec(True)
runpy.run_module("benchmarks.local.gpu", run_name="__main__")
"""


def test_devices_are_measured(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = run_python(RUN, "--quick", "--rounds", "1", "--json", str(result))
    assert b"us, encrypted" in done.stdout
    found = json.loads(result.read_text())["found"]
    for rows in (found["large"], found["transformer"]):
        assert {"limit, pinned copy", "us", "us, save hashes=all"} <= rows.keys()
        assert all(row["warm"] for name, row in rows.items() if name.startswith("us"))


def results_of(benchmark: str, folder: Path, *options: str) -> dict[str, Any]:
    result = folder / "result.json"
    program = ["-m", f"benchmarks.{benchmark}", "--quick", "--directory", str(folder)]
    arguments = [*program, "--json", str(result), *options]
    done = warm_python().run(arguments, environment(), TIMEOUT)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(result.read_text())["found"]
    return found


def run_quickly(benchmark: str, folder: Path, *options: str) -> dict[str, Any]:
    """Returns the rows of each workload. Only rows of the Run:ai streamer may have errors."""
    workloads = results_of(benchmark, folder, *options)
    for rows in workloads.values():
        for name, row in rows.items():
            if not name.startswith("Run:ai streamer"):
                assert row.get("warm") or row["cold"], (name, row)
                assert "error" not in row, (name, row)
    return workloads


def test_a_process_that_ended_has_no_memory() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert private_memory(process.pid) == 0
    assert private_memory() > 1 << 20


def test_local_files_are_measured(tmp_path: Path) -> None:
    workloads = run_quickly("local.run", tmp_path, "--workloads", "small", "--peers", "us,limit")
    names = {"us, copy", "us, save hashes=all", "limit, pread", "cold pread, 32 at once"}
    names |= {"us, chunks, copy, verify all", "us, chunks, save"}
    names |= {f"us, safetensors, {work}" for work in ("copy", "zero-copy", "save")}
    assert names <= workloads["small"].keys()


@pytest.mark.parametrize(
    ("workload", "names"),
    [
        (
            "http",
            [
                *("us, load", "bare libcurl, load", "tensorizer, load"),
                *("us, load safetensors", "download, then safetensors"),
            ],
        ),
        ("https", ["us, load", "bare libcurl, load", "tensorizer, load"]),
        ("lazy", ["us, key after key", "tensorizer, key after key"]),
        (
            "s3",
            [
                *("us, load", "us, load safetensors", "us, save"),
                "bare libcurl, load",
            ],
        ),
        ("redis", ["us, load", "us, save", "tensorizer, load", "tensorizer, save"]),
    ],
)
def test_servers_are_measured(tmp_path: Path, workload: str, names: list[str]) -> None:
    workloads = run_quickly("remote.run", tmp_path, "--workloads", workload)
    assert set(names) <= workloads[workload].keys()


def test_slices_are_measured(tmp_path: Path) -> None:
    found = results_of("local.slices", tmp_path)
    assert found["columns"] > 0 and found["rows"] > 0
    # The request for the index may have brought all of the small files.
    assert 0 <= found["far, received against needed"] <= 9


def test_signatures_are_measured(tmp_path: Path) -> None:
    found = results_of("local.signatures", tmp_path)
    assert all(seconds > 0 for seconds in found["seconds"].values())
    assert 1 <= found["part, received against needed"] <= 1.13


def test_cold_files_are_measured(tmp_path: Path) -> None:
    found = results_of("local.cold", tmp_path)
    assert all(ratio > 0 for ratio in found["ratios"].values())


def test_checkpoints_are_measured(tmp_path: Path) -> None:
    found = results_of("local.checkpoints", tmp_path)
    assert all(seconds > 0 for seconds in found["seconds"].values())


def test_deltas_are_measured(tmp_path: Path) -> None:
    found = results_of("local.deltas", tmp_path)
    assert all(speed > 0 for one in found.values() for speed in one["GB/s"].values())
    order = ("entropy", "code", "delta", "xor", "gaps", "values")
    for one in found.values():
        assert sorted(order, key=one.__getitem__) == list(order)


def test_code_for_tensorizer_is_measured(tmp_path: Path) -> None:
    found = run_quickly("curves.ways", tmp_path)
    of_transformer = ("load", "save", "load_into_module", "load from a BytesIO")
    for workload, ways in {
        "ways": ("eager", "lazy", "module", "plaid", "encrypted", "HTTP", "S3", "Redis"),
        "transformer": of_transformer,
        "small": ("load", "save"),
    }.items():
        rows = {f"{way}, {library}" for way in ways for library in ("tensorizer_ops", "tensorizer")}
        assert rows == found[workload].keys() - {"limit, pread"}
    assert "limit, pread" in found["transformer"]


def test_connections_and_threads_are_measured(tmp_path: Path) -> None:
    found = run_quickly("curves.scaling", tmp_path)
    for n in (1, 2, 4, 8):
        assert {f"tensorizer_ops, {n}", f"tensorizer, {n}"} <= found["slow"].keys()
        assert f"limit, bare libcurl, {n}" in found["fast"]
        works = ("copy", "verified", "saved")
        assert {f"tensorizer_ops, {work}, {n}" for work in works} <= found["threads"].keys()
        assert f"tensorizer, loaded, {n}" in found["encrypted"]


@pytest.mark.parametrize(
    ("benchmark", "curves"),
    [
        ("curves.sizes", {"tensorizer_ops, mapped", "tensorizer", "safetensors, mapped"}),
        ("curves.footprint", {"tensorizer_ops, copy", "tensorizer", "torch"}),
    ],
)
def test_curves_are_measured(tmp_path: Path, benchmark: str, curves: set[str]) -> None:
    panels = results_of(benchmark, tmp_path)["panels"]
    assert curves <= {curve for panel in panels for curve in panel["curves"]}
    assert all(0 < len(points) <= 61 for panel in panels for points in panel["curves"].values())


def test_the_charts_show_the_newest_results() -> None:
    done = warm_python().run(["-m", "benchmarks.charts.draw", "--check"], environment(), TIMEOUT)
    assert done.returncode == 0, done.stderr


def test_charts_need_results_and_pictures_need_charts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.charts import draw
    from benchmarks.harness.results import read_runs

    images, runs = tmp_path / "images", read_runs()
    shutil.copytree(draw.IMAGES, images)
    monkeypatch.setattr(draw, "IMAGES", images)
    assert draw.fault(draw.charts_of(runs)) == ""
    without = [run for run in runs if run.kind != "sizes"]
    assert "no results of sizes" in draw.fault(draw.charts_of(without))
    (images / "other-dark.svg").touch()
    assert "other-dark.svg is drawn from no results" in draw.fault(draw.charts_of(runs))
    (images / "other-dark.svg").unlink()
    (images / "ways-dark.svg").unlink()
    assert "ways-dark.svg shows other numbers" in draw.fault(draw.charts_of(runs))


def test_each_file_of_results_is_linked_from_a_page() -> None:
    """That links lead to files is a test of all pages (test_docs.py)."""
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    folder = "benchmarks/results"
    linked = set(re.findall(rf"\]\(\.\./{folder}/([^)]+)\)", pages))
    assert linked == {path.name for path in (ROOT / folder).iterdir()}


def test_a_chart_shows_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.charts.bars import bar_chart
    from benchmarks.harness.results import Run

    def run(date: str, machine: str, **rows: dict[str, float]) -> Run:
        found = {
            workload: {
                name: {"bytes": 2_000_000_000, "warm": [seconds, 4.0]}
                for name, seconds in seconds_of.items()
            }
            for workload, seconds_of in rows.items()
        }
        return Run("", date, machine, found)

    runs = [
        run("2026-03-04", "A", transformer={"us, copy": 0.1}),  # has fewer bars
        run("2026-03-03", "B", http={"us, load": 0.5}),
        run(
            "2026-03-02", "A", transformer={"us, copy": 1.0, "tensorizer": 2.0, "limit, pread": 0.5}
        ),
        run("2026-03-01", "A", transformer={"us, copy": 0.5}, s3={"us, load": 2.0}),
    ]
    onto_gpu = {"us, safetensors": 0.05, "safetensors": 0.4, "limit, read and copy": 0.04}
    runs.append(run("2026-03-01", "G", large=onto_gpu))
    runs[-1].found["device"] = "cuda:0"
    text = bar_chart(runs).text()
    assert "Load onto a GPU (1.86 GiB from /dev/shm):\n  tensorizer_ops: 40.00 (bare" in text
    assert "The GPU is in another machine: G, 2026-03-01." in text
    assert "tensorizer_ops: 2.00 (bare work: 4.00)\n  tensorizer: 1.00 (bare" in text
    assert "Load from S3 (1.86 GiB from rclone):\n  tensorizer_ops: 1.00\n" in text
    assert "HTTP" not in text and "Save" not in text
    assert "A, best of 2 rounds, 2026-03-01 and 2026-03-02." in text


def test_small_tensors_take_two_requests_in_a_row(tmp_path: Path) -> None:
    """With a round trip this long, a late start of a thread cannot look like another one."""
    options = ("--workloads", "far", "--round-trip", "1500")
    workloads = run_quickly("remote.run", tmp_path, *options)
    assert workloads["far"]["us, load"]["requests"] == 2
