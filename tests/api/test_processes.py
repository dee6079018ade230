"""Forks, threads and CPUs: a job uses only the CPUs and threads that it may use."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.process import fork, run_python, wait
from support.samples import assert_same, random_bytes, zoo

ops = torch.ops.tensorizer


def tensors() -> dict[str, torch.Tensor]:
    return {**zoo((30, 40)), "large": random_bytes(8 << 20)}


def use_everything(path: str) -> None:
    ops.save(path, tensors())
    assert_same(ops.load(path, verify="all"), tensors())
    assert_same(ops.load(path, copy=True), tensors())


def test_fork_after_loading(path: str) -> None:
    use_everything(path)
    kept = ops.load(path)
    children = [fork(lambda i=i: use_everything(f"{path}.{i}")) for i in range(3)]
    assert [wait(child) for child in children] == [0, 0, 0]
    assert_same(kept, tensors())
    use_everything(path)


def test_tensors_cross_a_fork(path: str) -> None:
    ops.save(path, tensors())
    kept = ops.load(path)
    reader = torch.classes.tensorizer.Reader(path, None)
    assert reader.names()

    def child() -> None:
        assert_same(kept, tensors())
        kept["large"].fill_(1)
        assert_same(reader.load(None, None, None, "all", True, 0), tensors())

    assert wait(fork(child)) == 0
    assert_same(kept, tensors())


def test_fork_while_loading_in_another_thread(path: str) -> None:
    ops.save(path, tensors())
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            ops.load(path, copy=True, verify="all")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for index in range(5):
            assert wait(fork(lambda index=index: use_everything(f"{path}.{index}"))) == 0
    finally:
        stop.set()
        thread.join()


FORK_AFTER_IMPORT = """
import os, sys, torch, tensorizer_ops
pid = os.fork()
ops = torch.ops.tensorizer
path = sys.argv[1] + str(pid == 0)
ops.save(path, {"x": torch.arange(1 << 20)})
assert torch.equal(ops.load(path, verify="all")["x"], torch.arange(1 << 20))
if pid:
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_fork_after_import(path: str) -> None:
    run_python(FORK_AFTER_IMPORT, path)


def extra_threads(work: Callable[[], object], enough: int | None = None) -> int:
    """Returns the largest number of threads that `work` adds. Runs `work` 3 times, and up to 100
    times until the number is `enough`: on a busy machine, the counting thread may miss a run."""
    most, stop = 0, threading.Event()
    before = len(os.listdir("/proc/self/task")) + 1  # and the counting thread

    def count() -> None:
        nonlocal most
        while not stop.is_set():
            most = max(most, len(os.listdir("/proc/self/task")) - before)
            time.sleep(0.0005)

    counter = threading.Thread(target=count)
    counter.start()
    try:
        for attempt in range(100):
            if attempt >= 3 and (enough is None or most >= enough):
                break
            work()
    finally:
        stop.set()
        counter.join()
    return most


@pytest.fixture
def large(path: str) -> str:
    ops.save(path, {str(index): random_bytes(16 << 20, index) for index in range(8)})
    return path


@pytest.mark.parametrize("cpus", ["one thread", "one CPU"])
def test_one_thread_means_no_other(large: str, cpus: str) -> None:
    """With threads=1, or if the process may use only one CPU, the calling thread does the work."""
    threads = 1 if cpus == "one thread" else 0

    def child() -> None:
        if cpus == "one CPU":
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        loaded = ops.load(large, copy=True)
        limit = 0 if cpus == "one thread" else 8  # the source sets the number of concurrent reads
        for work in (
            lambda: ops.load(large, copy=True, verify="all", threads=threads),
            lambda: ops.load(large, verify="all", threads=threads),
        ):
            assert extra_threads(work) <= limit
        assert extra_threads(lambda: ops.save(large + ".new", loaded, threads=threads)) <= 1

    assert wait(fork(child)) == 0


def test_more_threads_are_started_when_asked_for(large: str) -> None:
    assert extra_threads(lambda: ops.load(large, copy=True, verify="all", threads=4), 2) >= 2
    loaded = ops.load(large, copy=True)
    assert extra_threads(lambda: ops.save(large + ".new", loaded, threads=4), 2) >= 2
    assert Path(large + ".new").stat().st_size > 128 << 20


def test_threads_are_gone_afterwards(large: str) -> None:
    before = len(os.listdir("/proc/self/task"))
    ops.load(large, copy=True, verify="all", threads=4)
    assert len(os.listdir("/proc/self/task")) <= before
