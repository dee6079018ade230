"""What a program never closes is finished when it ends, while Python can still do so."""

from __future__ import annotations

import atexit
import contextlib
import weakref
from typing import Protocol


class _Unclosed(Protocol):
    def __del__(self) -> None: ...


# In the order in which they were made, which no set has.
_known: weakref.WeakKeyDictionary[_Unclosed, None] = weakref.WeakKeyDictionary()


def finish_at_exit(this: _Unclosed) -> None:
    """Have it do at the end of the program what it does when it is collected.

    Its ``__del__`` does nothing where it is closed already, or a copy in a child of ``fork()``.
    """
    _known[this] = None


@atexit.register
def _finish() -> None:
    # Whoever writes to another one was made after it, and a stack begins with the last.
    with contextlib.ExitStack() as stack:
        for this in _known:
            stack.callback(this.__del__)
