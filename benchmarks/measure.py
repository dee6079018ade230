"""One measurement: a fresh process loads or saves once, and is watched from outside.

The processes are forked from one that has imported everything and used nothing: imports are not
timed, and every load gets fresh memory. Before the clock starts, each
process saves or loads something tiny: thread pools and late imports are not what is compared.
"""

from __future__ import annotations

import multiprocessing
import signal
import statistics
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
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

_FORK = multiprocessing.get_context("fork")
_TIME_OUT = 600.0


@dataclass(frozen=True)
class Timing:
    seconds: float  # until the call returned
    ready: float  # until, on top of that, every page of every tensor had been touched
    memory: int | None  # the peak of private memory beyond the tensors, where it was watched


def nothing() -> None:
    pass


@dataclass(frozen=True)
class Task:
    """What a process does. The clock covers `run` alone, which gives what it has loaded."""

    run: Callable[[], State]
    # Raises where what was loaded, or saved, is wrong.
    check: Callable[[State], object]
    warm_up: Callable[[], object] = nothing
    # Before each repetition.
    prepare: Callable[[], object] = nothing
    # Those that `run` saves, which are in memory since before the process began.
    saved: State = field(default_factory=dict)


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


def _perform(task: Task, repeats: int, pipe: Connection) -> None:
    task.warm_up()
    # After a fork the first access to each page takes half a microsecond (measured), as long as to
    # write it to a file. A program that saves tensors has used them before.
    touch(pages_as_bytes(pages_of(task.saved)))
    timings: list[tuple[float, float]] = []
    for i in range(repeats):
        state: State = {}  # the memory of the last repetition goes here
        task.prepare()
        if i == repeats - 1:
            pipe.send(private_memory())
            pipe.recv()
        start = perf_counter()
        state = task.run()
        seconds = ready = perf_counter() - start
        in_file = mapped(state)
        if state:
            pages = pages_as_bytes(pages_of(in_file))
            start = perf_counter()
            touch(pages)
            ready += perf_counter() - start
        timings.append((seconds, ready))
    pipe.send(size_of(state) - size_of(in_file))
    task.check(state)
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


def measure(
    task: Task,
    *,
    repeats: int,
    threads: int,
    reserve: Reserve,
    lend: int,
    watch: bool = False,
) -> Timing:
    """Performs a task in a new process, with memory lent to it, and watches it if told to.

    It sends its memory, waits for an answer, and begins; then it sends what its tensors take, and
    its timings.
    """

    def child(pipe: Connection) -> None:
        torch.set_num_threads(threads)
        try:
            _perform(task, repeats, pipe)
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
