"""A function that runs in a thread while its caller does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


class Job(Generic[_Result]):
    """Starts when it is made. Its error is raised by :meth:`result`."""

    def __init__(self, work: Callable[[], _Result]) -> None:
        self._work = work
        self._results: list[_Result] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tensorizer_ops", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:
            self.error = error

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join()

    def result(self) -> _Result:
        """Block until the function has ended; return its result, once, or raise its error."""
        self._thread.join()
        if self.error is not None:
            raise self.error
        return self._results.pop()
