"""Reports the progress of loads and saves to a function or a progress bar."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from tensorizer_ops._base.tables import size_text

# A function that takes the bytes moved so far and the bytes to move in all; True draws a bar.
Progress = Callable[[int, int], object] | bool

_INTERVAL = 0.1
# The width of a full bar.
_BAR = 20


class Job(Protocol):
    def progress(self) -> tuple[int, int]: ...

    def cancel(self) -> None: ...


class Bar:
    """A progress bar on standard error, in one line of a terminal or a notebook; nothing elsewhere.

    Drawn once there are bytes to move: a load that maps its file moves none.
    """

    def __init__(self, label: str = "") -> None:
        self._label = label
        self._begin = time.monotonic()
        self._width = 0  # of what is drawn
        on_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._is_seen = on_terminal or "ipykernel" in sys.modules

    def __call__(self, done: int, total: int) -> None:
        if total == 0 or not self._is_seen:
            return
        seconds = max(time.monotonic() - self._begin, 1e-6)
        minutes, rest = divmod(int(seconds * (total - done) / max(done, 1)), 60)
        what = f"{100 * done // total:3}% of {size_text(total)}, {size_text(int(done / seconds))}/s"
        when = f"{seconds:.1f} s" if done == total else f"{minutes}:{rest:02} left" if done else ""
        room = max(3, _columns() - 1 - len(what) - len(when) - _BAR - 4)
        excess = len(self._label) - room
        label = f"...{self._label[excess + 3 :]}" if excess > 0 else self._label
        mark = "━" if (sys.stderr.encoding or "").lower().startswith("utf") else "#"
        drawn = f"{mark * (_BAR * done // total):{_BAR}}"
        line = f"{label}{' ' * bool(label)}{drawn} {what}, {when}".rstrip(" ,")
        print(f"\r{line:{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def close(self) -> None:
        """End the line."""
        if self._width:
            print(file=sys.stderr)
        self._width = 0


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:  # a notebook
        return 80


@contextmanager
def reported(job: Job, progress: Progress | None) -> Iterator[None]:
    """Call ``progress`` ten times a second while the block runs the job, and once at the end.

    An exception that ``progress`` raises cancels the job and is raised from the block.
    """
    report = Bar() if progress is True else progress
    if not report:
        yield
        return
    try:
        with _reported(job, report):
            yield
    finally:
        if isinstance(report, Bar):
            report.close()


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
