"""progress=: reports progress while a job runs, and can end the job by raising."""

from __future__ import annotations

import os
import re
import select
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

import tensorizer_ops
from support.samples import same
from tensorizer_ops import errors
from tensorizer_ops._base.progress import Bar, reported

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
    saved: str,
    job: Callable[..., torch.Tensor],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert same(job(saved, progress=True), WEIGHT)
    assert capsys.readouterr().err == "", "it is no terminal"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert same(job(saved, progress=True), WEIGHT)
    drawn = capsys.readouterr().err
    # Blanks end a line that is shorter than the one before.
    assert drawn.startswith("\r") and re.search(r" s *\n$", drawn) and "100% of 12.0 MiB, " in drawn


def test_draws_a_bar_in_a_notebook(
    saved: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    load(saved, progress=True)
    assert "100% of 12.0 MiB" in capsys.readouterr().err


def test_draws_a_bar_of_the_bytes_that_move(
    saved: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    tensorizer_ops.load(saved, progress=True)
    assert capsys.readouterr().err == ""  # it is mapped


def test_ends_the_line_of_a_bar_before_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bar = Bar("m.tensors")
    with pytest.raises(errors.NotFound), reported(Halfway(), bar):
        bar(*Halfway().progress())
        tensorizer_ops.load(tmp_path / "none")
    drawn = capsys.readouterr().err
    assert re.search(r"^\rm.tensors \S{10} {10}  50% of 2.0 KiB, .*/s, \d+:\d\d left\n$", drawn)


def test_fits_a_bar_into_the_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bar = Bar("s3://bucket/" + "folder/" * 20 + "m.tensors")
    for done in (0, 1 << 20, 1 << 40):
        bar(done, 1 << 40)
    *before, last = capsys.readouterr().err.split("\r")[1:]
    assert all(len(line) < 80 and "..." in line and "m.tensors" in line for line in before)
    assert last.startswith("...") and len(last) < 80


class Halfway:
    def progress(self) -> tuple[int, int]:
        return 1024, 2048

    def cancel(self) -> None:
        raise AssertionError("nobody asked for that")


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
