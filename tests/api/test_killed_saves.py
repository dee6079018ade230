"""Saves of several files that are killed, or that others run beside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.preload import preloaded
from support.process import environment

PROGRAM = """
import sys
from pathlib import Path
from support import killed_saves
print(getattr(killed_saves, sys.argv[1])(Path(sys.argv[2]), sys.argv[3]))
"""


@pytest.mark.parametrize("way", ["run", "run_beside", "run_loads"])
def test_saves_that_are_killed_or_stopped(tmp_path: Path, way: str) -> None:
    """They leave all of the older model or all of the new one.

    KILL_POINTS says how many system calls are tried: `make kills` tries all.
    """
    points = os.environ.get("KILL_POINTS", "50")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, way, tmp_path, points],
        env=environment() | {"LD_PRELOAD": str(preloaded(tmp_path))},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert int(done.stdout) >= 50
