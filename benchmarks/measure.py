"""One measurement: a fresh process loads or saves once, and is watched from outside.

The processes are forked from one that has imported everything and used nothing, so that imports
cost nobody anything and every load gets memory that is new to it. Before the clock starts, each
process saves and loads something tiny: thread pools and late imports are not what is compared.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from memory import (
    Failure,
    Reserve,
    State,
    mapped,
    pages_as_bytes,
    pages_of,
    private_memory,
    size_of,
    touch,
)
from peers import CHECKERS, Library, Peer

_FORK = multiprocessing.get_context("fork")
_TIME_OUT = 600.0


@dataclass(frozen=True)
class Timing:
    seconds: float  # until the call returned
    ready: float  # until, on top of that, every page of every tensor had been touched
    memory: int | None  # the peak of private memory beyond the tensors, where it was watched


# -- what happens in the process -------------------------------------------------------------------


def check(state: State, expected: State) -> None:
    """Raises unless both hold the same names, shapes, dtypes and bytes."""
    if state.keys() != expected.keys():
        raise Failure("other names than were saved")
    for name, tensor in expected.items():
        other = state[name].detach()
        if other.dtype != tensor.dtype or other.shape != tensor.shape:
            raise Failure(f"{name} has another dtype or shape than was saved")
        # As integers, because a random NaN is not equal to itself.
        if not torch.equal(other.view(-1).view(torch.int64), tensor.view(-1).view(torch.int64)):
            raise Failure(f"{name} has other bytes than were saved")


def _warm_up(peer: Peer, directory: Path) -> None:
    tiny = {f"tiny.{i}": torch.arange(1024, dtype=torch.float32) + i for i in range(4)}
    path = directory / f"tiny{peer.library.suffix}"
    (peer.save or peer.library.save)(tiny, str(path))
    load = peer.load or CHECKERS[peer.library.name]
    check(load(str(path)), tiny)
    path.unlink()


def _load(peer: Peer, path: Path, expected: State, repeats: int, pipe: Connection) -> None:
    assert peer.load is not None
    timings: list[tuple[float, float]] = []
    for i in range(repeats):
        state: State = {}  # the memory of the last repetition goes here
        if i == repeats - 1:
            pipe.send(private_memory())
            pipe.recv()
        start = perf_counter()
        state = peer.load(str(path))
        seconds = perf_counter() - start
        in_file = mapped(state)
        pages = pages_as_bytes(pages_of(in_file))
        start = perf_counter()
        touch(pages)
        timings.append((seconds, seconds + perf_counter() - start))
    pipe.send(size_of(state) - size_of(in_file))
    check(state, expected)
    pipe.send(_typical(timings))


def _save(peer: Peer, path: Path, state: State, repeats: int, pipe: Connection) -> None:
    assert peer.save is not None
    timings: list[tuple[float, float]] = []
    for i in range(repeats):
        path.unlink(missing_ok=True)
        if i == repeats - 1:
            pipe.send(private_memory())
            pipe.recv()
        start = perf_counter()
        peer.save(state, str(path))
        seconds = perf_counter() - start
        timings.append((seconds, seconds))
    pipe.send(0)
    check(CHECKERS[peer.library.name](str(path)), state)
    path.unlink()
    pipe.send(_typical(timings))


def _typical(timings: list[tuple[float, float]]) -> tuple[float, float]:
    """The median repetition; the first one of several is a warm-up."""
    if len(timings) > 1:
        timings = timings[1:]
    return (
        statistics.median(seconds for seconds, _ in timings),
        statistics.median(ready for _, ready in timings),
    )


# -- and outside -----------------------------------------------------------------------------------


def in_child(
    work: Callable[[Connection], None],
    threads: int,
    reserve: Reserve,
    lend: int = 0,
    watch: bool = False,
) -> Timing:
    """Runs `work` in a new process, with memory lent to it, and watches it meanwhile if told to.

    It sends its memory, waits for an answer, and begins; then it sends what its tensors take, and
    its timings.
    """

    def child(pipe: Connection) -> None:
        torch.set_num_threads(threads)
        try:
            work(pipe)
        except Failure as failure:
            pipe.send(failure)
        except Exception as error:
            reason = "".join(traceback.format_exception_only(error)).strip()
            pipe.send(Failure(reason.splitlines()[0]))

    here, there = _FORK.Pipe()
    process = _FORK.Process(target=child, args=(there,))
    process.start()
    there.close()

    def receive() -> Any:
        if not here.poll(_TIME_OUT):
            raise Failure(f"no end after {_TIME_OUT:.0f} s")
        value = here.recv()
        if isinstance(value, Failure):
            raise value
        return value

    try:
        baseline = peak = receive()
        reserve.lend(lend)
        here.send("go")
        while watch and not here.poll(0.002):
            peak = max(peak, private_memory(str(process.pid)))
        tensors = receive()
        seconds, ready = receive()
    except (EOFError, OSError):
        process.join(_TIME_OUT)
        raise Failure(f"the process died: {_reason(process.exitcode)}") from None
    finally:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
        here.close()
        reserve.take_back()
    return Timing(seconds, ready, max(0, peak - baseline - tensors) if watch else None)


def _reason(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"exit status {exit_code}"


def measure(
    peer: Peer,
    path: Path,
    state: State,
    *,
    repeats: int,
    threads: int,
    reserve: Reserve,
    watch: bool = False,
) -> Timing:
    """Loads from, or saves to, `path`, and checks every byte afterwards."""

    def work(pipe: Connection) -> None:
        _warm_up(peer, path.parent)
        (_load if peer.load is not None else _save)(peer, path, state, repeats, pipe)

    # A save needs memory for the file, and another time as much when the file is checked.
    lend = size_of(state) * (1 if peer.save is None else 2)
    return in_child(work, threads, reserve, lend, watch)


def write(library: Library, path: Path, state: State, threads: int, reserve: Reserve) -> None:
    """Makes the file that a library's loads read, and puts it on the disk."""

    def work(pipe: Connection) -> None:
        pipe.send(0)
        pipe.recv()
        library.save(state, str(path))
        with path.open("rb") as file:
            os.fsync(file.fileno())
        pipe.send(0)
        pipe.send((0.0, 0.0))

    in_child(work, threads, reserve)
