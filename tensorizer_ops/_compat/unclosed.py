"""Finishes files that a program did not close when it exits, before Python shuts down."""

from __future__ import annotations

import atexit
import contextlib
import weakref
from typing import Protocol


class _Unclosed(Protocol):
    def __del__(self) -> None: ...


# A dict because it keeps the order of creation, which a set does not.
_known: weakref.WeakKeyDictionary[_Unclosed, None] = weakref.WeakKeyDictionary()


def finish_at_exit(this: _Unclosed) -> None:
    """Call the ``__del__`` of an object at exit unless it has been garbage-collected by then.

    Its ``__del__`` must do nothing if it is closed, or is a copy in a child of ``fork()``.
    """
    _known[this] = None


@atexit.register
def _finish() -> None:
    # In reverse order of creation: an object that writes to another one was made after it.
    with contextlib.ExitStack() as stack:
        for this in _known:
            stack.callback(this.__del__)
