"""Quoting what files and servers say."""

from __future__ import annotations

from tensorizer_ops import _core
from tensorizer_ops._base.arguments import kind_of


def quoted(value: object, most: int = 100) -> str:
    """Quote a value of a file for a message: escaped, cut, and without secrets of this process."""
    if isinstance(value, str):
        return _core.quoted(value.encode(errors="backslashreplace"), most)
    if isinstance(value, int | float | None):
        return _core.quoted(repr(value).encode(), most)[1:-1]
    return kind_of(value)  # what it holds may be a secret, which repr() would escape


def in_one_line(error: BaseException, text: str | None = None) -> str:
    """Return the kind of an error and its text, which may have some of what a file says.

    What quotes it is raised ``from None``: a traceback would show the error itself with secrets.
    """
    text = str(error) if text is None else text
    shown = quoted(text, 2000).replace(r"\x0a", " ")  # as a secret may hold blanks
    return f"{type(error).__name__}: {' '.join(shown.split())}"
