"""Fetching tensors before they are loaded."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import torch

from tensorizer_ops._base.arguments import check_names


class Prefetch(Future[None]):
    """A fetch in the background: a future that is done when the bytes are there.

    If the fetch fails, :meth:`result` raises the exception, and loads read what it has not fetched.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cancel = torch.classes.tensorizer.Cancel()

    def cancel(self) -> bool:
        """Ask the fetch to stop soon; :meth:`result` raises ``errors.Cancelled``.

        Returns whether the fetch was still running.
        """
        self._cancel.cancel()
        return not self.done()


def start(reader: Any, names: Sequence[str] | None) -> Prefetch:
    """Fetch tensors of a ``torch.classes.tensorizer.Reader`` in a thread."""
    future = Prefetch()
    wanted = None if names is None else list(names)
    check_names("names", wanted or ())

    threading.Thread(
        target=_run, args=(future, reader, wanted), name="tensorizer_ops prefetch", daemon=True
    ).start()
    return future


def _run(future: Prefetch | None, reader: Any, names: list[str] | None) -> None:
    assert future is not None
    future.set_running_or_notify_cancel()
    try:
        torch.classes.tensorizer._Internals(reader).prefetch(names, future._cancel)
    except BaseException as error:
        future.set_exception(error)
        # The exception refers to this frame, which must not keep the reader and the future alive.
        future = reader = None
    else:
        future.set_result(None)
