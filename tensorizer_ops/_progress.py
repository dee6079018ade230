"""Tells somebody how far a job is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

# Bytes that have moved, and are to move.
Progress = Callable[[int, int], object]

_INTERVAL = 0.1


class Job(Protocol):
    def progress(self) -> tuple[int, int]: ...

    def cancel(self) -> None: ...


@contextmanager
def reported(job: Job, report: Progress | None) -> Iterator[None]:
    """While the block runs the job, ``report`` is called ten times a second, and at its end.

    What ``report`` raises ends the job, and is what its caller sees.
    """
    if report is None:
        yield
        return
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
