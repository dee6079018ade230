"""Quoting what files and servers say."""

from __future__ import annotations

from tensorizer_ops import _core


def quoted(value: object, most: int = 100) -> str:
    """Quote a value of a file for a message: escaped, cut, and without secrets of this process."""
    if isinstance(value, int | float | None):
        return repr(value)[:most]
    text = value if isinstance(value, str) else repr(value)
    return _core.quoted(text.encode(errors="backslashreplace"), most)


def in_one_line(error: BaseException, text: str | None = None) -> str:
    """Return the kind of an error and its text, which may have some of what a file says."""
    text = str(error) if text is None else text
    return f"{type(error).__name__}: {quoted(' '.join(text.split()), 2000)}"
