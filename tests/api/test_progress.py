"""progress=: reports progress while a job runs, and can end the job by raising."""

from __future__ import annotations

import os
import re
import select
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.samples import same
from tensorizer_ops import errors

WEIGHT = torch.arange(3 << 20, dtype=torch.int32).view(3, -1)
Told = list[tuple[int, int]]


class Net(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("w", weight)


def load(path: str, **progress: object) -> torch.Tensor:
    return tensorizer_ops.load(path, copy=True, **progress)["w"]


def load_into(path: str, **progress: object) -> torch.Tensor:
    net = Net(torch.zeros_like(WEIGHT))
    tensorizer_ops.load_into(net, path, **progress)
    return net.w


def save(path: str, **progress: object) -> torch.Tensor:
    tensorizer_ops.save(path, {"w": WEIGHT}, **progress)
    return tensorizer_ops.load(path)["w"]


JOBS = [load, load_into, save]


@pytest.fixture
def saved(path: str) -> str:
    tensorizer_ops.save(path, {"w": WEIGHT})
    return path


@pytest.mark.parametrize("job", JOBS)
def test_is_told_to_the_end(saved: str, job: Callable[..., torch.Tensor]) -> None:
    told: Told = []
    threads = threading.active_count()
    assert same(job(saved, progress=lambda done, total: told.append((done, total))), WEIGHT)
    assert told[-1] == (WEIGHT.nbytes, WEIGHT.nbytes)
    assert told == sorted(told)
    assert threading.active_count() == threads


def test_is_told_meanwhile(tmp_path: Path) -> None:
    """The pipe is drained only by the callback, so a save that reported at its end would hang."""
    target = str(tmp_path / "pipe")
    os.mkfifo(target)
    reader = os.open(target, os.O_RDONLY | os.O_NONBLOCK)
    told: Told = []

    def report(done: int, total: int) -> None:
        told.append((done, total))
        if done < total:
            drain(reader, WEIGHT.nbytes // 3)

    try:
        tensorizer_ops.save(target, {"w": WEIGHT}, progress=report)
    finally:
        os.close(reader)
    assert len(told) > 2
    assert told[-1] == (WEIGHT.nbytes, WEIGHT.nbytes)


def drain(reader: int, size: int) -> None:
    """Reads `size` bytes, or fewer if no more arrive."""
    while size > 0 and select.select([reader], [], [], 0.5)[0]:
        data = os.read(reader, size)
        if not data:
            return
        size -= len(data)


class Enough(Exception):
    pass


def enough(done: int, total: int) -> None:
    raise Enough


@pytest.mark.parametrize("job", JOBS)
def test_whoever_is_told_can_end_it(tmp_path: Path, job: Callable[..., torch.Tensor]) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    # Opened for both directions: nothing is ever written to it or read from it.
    both_ends = os.open(pipe, os.O_RDWR)
    threads = threading.active_count()
    try:
        with pytest.raises(Enough):
            job(pipe, progress=enough)
    finally:
        os.close(both_ends)
    assert threading.active_count() == threads
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("job", JOBS)
def test_draws_a_bar(
    saved: str, job: Callable[..., torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    assert same(job(saved, progress=True), WEIGHT)
    assert "12.0M/12.0M" in capsys.readouterr().err


def test_draws_a_bar_of_the_bytes_that_move(saved: str, capfd: pytest.CaptureFixture[str]) -> None:
    tensorizer_ops.load(saved, progress=True)
    assert capfd.readouterr().err == ""  # it is mapped
    tensorizer_ops.load(saved, copy=True, progress=True)
    drawn = capfd.readouterr().err
    assert "100%" in drawn
    rates = re.findall(r"([\d.]+)([kMGT]?)B/s", drawn)
    seconds = [WEIGHT.nbytes / (float(n) * 1024 ** " kMGT".index(unit or " ")) for n, unit in rates]
    assert seconds, drawn
    assert min(seconds) > 1e-4, "the time begins with the load, not with the bar"


def test_draws_nothing_without_tqdm(saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match="tqdm, which is not installed"):
        tensorizer_ops.load(saved, progress=True)


def test_a_graph_reports_nothing(saved: str) -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def compiled() -> dict[str, torch.Tensor]:
        return tensorizer_ops.load(saved, names=["w"], progress=print)

    with pytest.raises(Exception, match="progress= is not supported in a compiled graph"):
        compiled()


def test_what_the_last_call_raises_comes_after_the_job(path: str) -> None:
    caller = threading.get_ident()

    def end(done: int, total: int) -> None:
        if threading.get_ident() == caller:  # the last call is the only one on the caller's thread
            raise Enough

    with pytest.raises(Enough):
        tensorizer_ops.save(path, {"w": WEIGHT[:1000]}, progress=end)
    assert same(tensorizer_ops.load(path)["w"], WEIGHT[:1000])


def test_what_fails_says_so(tmp_path: Path) -> None:
    """The exception is the job's own error, whatever was reported."""
    with pytest.raises(errors.NotFound):
        tensorizer_ops.load(tmp_path / "none", progress=lambda done, total: None)
