"""Ranks on several hosts, as far as `distributed.load` can tell: each has its own PID namespace."""

from __future__ import annotations

import ctypes
import datetime
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

import tensorizer_ops
from benchmarks.harness.memory import system_memory
from benchmarks.harness.ranks import run_ranks
from tensorizer_ops import distributed

_NEW_USER_AND_PID, _DIE_WITH_PARENT = 0x30000000, 1
_TIME_OUT = datetime.timedelta(seconds=120)


def run_hosts(count: int, uri: str, rounds: int, options: Mapping[str, object]) -> dict[str, Any]:
    """Load a file on several ranks: each by itself, and then together, `rounds` times in turn.

    Returns, for both ways, the seconds of the slowest rank in each round, and the most memory that
    a rank had during a load beyond its tensors and what it had before.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        each = run_ranks(
            folder,
            count,
            lambda rank: _as_host(folder, rank, count, uri, rounds, options),
        )
    found = {}
    for way in each[0]:
        seconds = [max(one[way][number][0] for one in each) for number in range(rounds)]
        most = max(memory for one in each for _, memory in one[way])
        found[way] = {"seconds": seconds, "memory": most}
    return found


def _as_host(folder: Path, rank: int, *given: Any) -> Any:
    """Run a rank in a process of a PID namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_USER_AND_PID):
        raise OSError(ctypes.get_errno(), "unshare: this system allows no user namespaces")
    pid = os.fork()
    if pid:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    return _loads(folder, rank, *given)


def _loads(
    folder: Path, rank: int, count: int, uri: str, rounds: int, options: Mapping[str, Any]
) -> dict[str, list[tuple[float, int]]]:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        *("gloo", f"file://{folder}/store", _TIME_OUT), rank=rank, world_size=count
    )
    memory = partial(system_memory, file="/proc/self/status")
    ways: dict[str, Any] = {"everyone": tensorizer_ops.load, "gather": distributed.load}
    found: dict[str, list[tuple[float, int]]] = {way: [] for way in ways}
    for load in ways.values():
        load(uri, names=["tiny"], options=options)
    for _ in range(rounds):
        for way, load in ways.items():
            dist.barrier()
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins at what is used now
            before = memory("VmRSS")
            begin = time.perf_counter()
            loaded = load(uri, options=options)
            seconds = time.perf_counter() - begin
            size = sum(tensor.nbytes for tensor in loaded.values())
            found[way].append((seconds, memory("VmHWM") - before - size))
            del loaded
    dist.barrier()
    dist.destroy_process_group()
    return found
