"""Processes that work together, as the ranks of a group."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.memory import Failure


def run_ranks(folder: Path, count: int, work: Callable[[int], Any]) -> list[Any]:
    """Call `work` with each rank in a process of its own; return what they return, as JSON."""
    ranks = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                (folder / f"{rank}.json").write_text(json.dumps(work(rank)))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        ranks.append(pid)
    statuses = [os.waitpid(pid, 0)[1] for pid in ranks]
    if any(statuses):
        raise Failure("a rank has failed")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]
