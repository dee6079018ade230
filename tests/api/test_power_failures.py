"""Saves during which the power fails, calls fail, or the process is killed."""

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
from support import power_failures
print(getattr(power_failures, sys.argv[1])(Path(sys.argv[2]), sys.argv[3]))
"""


@pytest.mark.parametrize(
    ("what", "usual", "least"),
    [
        ("power_failures", "20", 130),
        ("broken_calls", "40", 40),
        pytest.param("left_out_syncs", "", 12, marks=pytest.mark.slow),
    ],
)
def test_saves_that_do_not_end(tmp_path: Path, what: str, usual: str, least: int) -> None:
    """They leave all of the older model or all of the new one, as their options promise.

    POWER_STATES says how many states are tried after each call: `make simulate` tries all of most.
    """
    wanted = os.environ.get("POWER_STATES", usual)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, what, tmp_path, wanted],
        env=environment() | {"LD_PRELOAD": str(preloaded(tmp_path, "disk"))},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert int(done.stdout) >= least
