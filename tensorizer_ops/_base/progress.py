"""Reports the progress of loads and saves to a function or a progress bar."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

# A function that takes the bytes moved so far and the bytes to move in all; True draws a bar.
Progress = Callable[[int, int], object] | bool

_INTERVAL = 0.1


class Job(Protocol):
    def progress(self) -> tuple[int, int]: ...

    def cancel(self) -> None: ...


class _Bar:
    """A bar of tqdm, drawn once there are bytes to move: a load that maps its file moves none."""

    def __init__(self) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            raise ImportError(
                "progress=True needs tqdm, which is not installed: run `pip install tqdm`, or give "
                "a function as progress="
            ) from None
        self._make: Any = tqdm
        self._bar: Any = None
        self._begin = time.time()  # tqdm's clock

    def __call__(self, done: int, total: int) -> None:
        if total == 0:
            return
        if self._bar is None:
            self._bar = self._make(total=total, unit="B", unit_scale=True, unit_divisor=1024)
            self._bar.start_t = self._bar.last_print_t = self._begin
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


@contextmanager
def reported(job: Job, progress: Progress | None) -> Iterator[None]:
    """Call ``progress`` ten times a second while the block runs the job, and once at the end.

    An exception that ``progress`` raises cancels the job and is raised from the block.
    """
    if progress is True:
        bar = _Bar()
        try:
            with _reported(job, bar):
                yield
        finally:
            bar.close()
    elif progress:
        with _reported(job, progress):
            yield
    else:
        yield


@contextmanager
def _reported(job: Job, report: Callable[[int, int], object]) -> Iterator[None]:
    over = threading.Event()
    raised: list[BaseException] = []

    def watch() -> None:
        while not over.wait(_INTERVAL) and not raised:
            try:
                report(*job.progress())
            except BaseException as error:
                raised.append(error)
                job.cancel()

    thread = threading.Thread(target=watch, name="tensorizer_ops progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if raised:
            raise raised[0] from None
    report(*job.progress())
