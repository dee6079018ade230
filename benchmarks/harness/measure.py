"""One measurement: a new process loads or saves, and its memory is watched from outside.

The processes are forked from one that has imported everything but used nothing: so imports are not
timed, and every load gets fresh memory. Before the clock starts, each process saves or loads
something tiny, so that thread pools and late imports are not measured.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import statistics
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.harness.memory import (
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
from benchmarks.harness.results import THREADS

_FORK = multiprocessing.get_context("fork")
_TIME_OUT = 600.0


@dataclass(frozen=True)
class Timing:
    seconds: float  # until the call returned
    ready: float  # until every page of every mapped tensor was touched as well
    memory: int | None  # the peak of private memory beyond the tensors; None if not watched
    # The private memory beyond that before the call, by the seconds since then, if it was watched.
    course: tuple[tuple[float, int], ...] = ()


def nothing() -> None:
    pass


@dataclass(frozen=True)
class Task:
    """The work of a process. The clock covers only `run`, which returns what it loads."""

    run: Callable[[], State | None]
    # Raises an exception if the loaded or saved data is wrong.
    check: Callable[[State], object]
    warm_up: Callable[[], object] = nothing
    # Called before each repetition.
    prepare: Callable[[], object] = nothing
    # The tensors that `run` saves, which were in memory before the process was forked.
    saved: State = field(default_factory=dict)


def saving(
    save: Callable[[State, str], None],
    load: Callable[[str], State],
    state: State,
    place: Path,
    warm_up: Callable[[], object],
) -> Task:
    """Return the task that saves to `place`, each time to a new file."""

    def check_saved(_: State) -> None:
        check(load(str(place)), state)
        place.unlink()

    run = partial(save, state, str(place))
    return Task(run, check_saved, warm_up, lambda: place.unlink(missing_ok=True), state)


# -- in the measuring process ----------------------------------------------------------------------


def check(state: State, expected: State) -> None:
    """Raise an exception unless both have the same names, shapes, dtypes and bytes."""
    if state.keys() != expected.keys():
        raise Failure("the names differ from those that were saved")
    for name, tensor in expected.items():
        other = state[name].detach()
        if other.dtype != tensor.dtype or other.shape != tensor.shape:
            raise Failure(f"{name} has another dtype or shape than was saved")
        # Compared as integers, because NaN is not equal to itself.
        if not torch.equal(other.view(-1).view(torch.int64), tensor.view(-1).view(torch.int64)):
            raise Failure(f"{name} has other bytes than were saved")


def _perform(task: Task, repeats: int, pipe: Connection) -> None:
    task.warm_up()
    # After a fork, the first access to a page takes half a microsecond (measured), as long as
    # writing it to a file. A real program has used its tensors before it saves them.
    touch(pages_as_bytes(pages_of(task.saved)))
    seconds, ready = [], []
    for i in range(repeats):
        state: State = {}  # frees the memory of the previous repetition
        task.prepare()
        if i == repeats - 1:
            pipe.send(private_memory())
            pipe.recv()
        start = perf_counter()
        state = task.run() or {}
        seconds.append(perf_counter() - start)
        ready.append(seconds[-1])
        in_file = mapped(state)
        if state:
            pages = pages_as_bytes(pages_of(in_file))
            start = perf_counter()
            touch(pages)
            ready[-1] += perf_counter() - start
    pipe.send(size_of(state) - size_of(in_file))
    task.check(state)
    pipe.send((typical(seconds), typical(ready)))


def typical(values: list[float]) -> float:
    """Return the median repetition, without the first of several, which is a warm-up."""
    return statistics.median(values[1:] or values)


# -- in the parent process -------------------------------------------------------------------------


def prepare_to_fork() -> None:
    """Keep this process single-threaded, so that forked processes start like new ones."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)


def measure(
    task: Task, reserve: Reserve, lend: int, *, repeats: int = 1, watch: bool = False
) -> Timing:
    """Perform a task in a new process with `lend` bytes of the reserve; optionally watch memory.

    The process sends its current memory usage, waits for a reply, and runs the task. Then it sends
    the memory of its tensors, and its timings.
    """

    def child(pipe: Connection) -> None:
        torch.set_num_threads(THREADS)
        try:
            _perform(task, repeats, pipe)
        except Failure as failure:
            pipe.send(failure)
        except Exception as error:
            reason = "".join(traceback.format_exception_only(error)).strip()
            pipe.send(Failure(reason.splitlines()[0]))

    gc.freeze()  # garbage collection in a forked process would copy every page it visits
    here, there = _FORK.Pipe()
    process = _FORK.Process(target=child, args=(there,))
    process.start()
    there.close()

    def receive() -> Any:
        if not here.poll(_TIME_OUT):
            raise Failure(f"timed out after {_TIME_OUT:.0f} s")
        value = here.recv()
        if isinstance(value, Failure):
            raise value
        return value

    try:
        baseline = receive()
        reserve.lend(lend)
        course: list[tuple[float, int]] = []
        here.send("go")
        start = perf_counter()
        while watch:
            course.append((perf_counter() - start, private_memory(str(process.pid)) - baseline))
            if here.poll(0.002):
                break
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
    peak = max((memory for _, memory in course), default=0)
    memory = max(0, peak - tensors) if watch else None
    return Timing(seconds, ready, memory, tuple(course))


def _reason(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"exit status {exit_code}"
