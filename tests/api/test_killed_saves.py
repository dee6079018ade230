"""A save of several files that is killed leaves all of the older model or all of the new one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.preload import preloaded
from support.process import environment

PROGRAM = """
import sys
from pathlib import Path
from support.killed_saves import run
print(run(Path(sys.argv[1]), sys.argv[2]))
"""


def test_saves_that_are_killed(tmp_path: Path) -> None:
    """KILL_POINTS says how many system calls are tried: `make kills` tries all."""
    points = os.environ.get("KILL_POINTS", "50")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, tmp_path, points],
        env=environment() | {"LD_PRELOAD": str(preloaded(tmp_path))},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert int(done.stdout) >= 50
