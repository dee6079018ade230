"""The script that runs all checks and measurements on a machine with a GPU, without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.process import ROOT

SCRIPT = ROOT / "tools" / "gpu" / "run.sh"
NEED_A_GPU = ("loads-1-gib", "transformer", "loads-8-gib", "memcheck", "kernels", "counters")


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    folder = tmp_path / "gpu"
    folder.mkdir()
    shutil.copy(SCRIPT, folder)
    (folder / "check.py").write_text("import sys; print('arguments', *sys.argv[1:])\n")
    return folder


def run(pack: Path, python: str, out: Path, *options: str) -> tuple[int, list[str]]:
    command = [str(pack / "run.sh"), "--device", "cpu", "--python", python, *options]
    done = subprocess.run(
        command, env=os.environ | {"OUT": str(out)}, capture_output=True, text=True, check=False
    )
    summary = (out / "summary.txt").read_text()
    assert done.stdout.endswith(summary) and len(summary) <= 12_000
    return done.returncode, summary.splitlines()


# Fails the quick check after many long lines, and never ends another one.
PYTHON = """#!/bin/sh
case $* in *--quick) ;; *) exec sleep 600 ;; esac
for i in $(seq 1000); do printf '%01000d\\n' $i; done
echo 'the device is wrong' >&2
exit 1
"""


def test_a_step_that_fails_costs_only_itself(pack: Path, tmp_path: Path) -> None:
    python, out = tmp_path / "python", tmp_path / "results"
    python.write_text(PYTHON)
    python.chmod(0o755)
    status, lines = run(pack, str(python), out, "--seconds", "5")
    assert status == 1
    assert any(line.startswith("FAILED 1  check-quick: ") for line in lines)
    assert "    the device is wrong" in lines
    assert any(line.startswith("TIME OUT  check-full: ") for line in lines)
    assert "not run  memory: no time is left" in lines
    for name in NEED_A_GPU:
        assert f"not run  {name}: it needs a GPU" in lines
    assert len((out / "check-quick.txt").read_text().splitlines()) == 1001


def test_what_needs_no_gpu_runs(pack: Path, tmp_path: Path) -> None:
    status, lines = run(pack, sys.executable, tmp_path / "results")
    assert status == 0
    for arguments in ("--device cpu --quick", "--device cpu"):
        assert f"    arguments {arguments}" in lines


def test_options_that_are_not_known_are_explained(pack: Path) -> None:
    done = subprocess.run([str(pack / "run.sh"), "--help"], capture_output=True, text=True)
    assert done.returncode == 2 and "run.sh [--device cuda]" in done.stderr
