"""Chains of checkpoints that are broken in saves, prunes and loads, by one process and by four."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.preload import preloaded
from support.process import environment

PROGRAM = """
import logging, sys
from pathlib import Path
from support import chain_faults
logging.disable()
print(chain_faults.trials(Path(sys.argv[1]), sys.argv[2]))
"""


def test_the_newest_step_that_is_whole_is_loaded(tmp_path: Path) -> None:
    """CHAIN_TRIALS says how many trials of each kind are made: `make simulate` makes 1,000."""
    wanted = os.environ.get("CHAIN_TRIALS", "5")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, tmp_path, wanted],
        env=environment() | {"LD_PRELOAD": str(preloaded(tmp_path, "disk"))},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert int(done.stdout) >= 6
