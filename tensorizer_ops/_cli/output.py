"""Text for terminals: colours, tables that fit, progress bars and notes."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

from tensorizer_ops import _core
from tensorizer_ops._base.progress import Bar
from tensorizer_ops._base.tables import MOST_ROWS, safe
from tensorizer_ops._base.targets import to_uri
from tensorizer_ops._front.inspection import File

# Lines of a terminal that are not the rows of a table.
_OTHER_LINES = 12


def name_of(file: File) -> str:
    """Return the path or URI of a file for output: without secrets and without quotes."""
    label = file.label()
    return safe(label[1:-1] if label.startswith("'") else label)


def bold(text: str) -> str:
    return _styled(text, "1", sys.stdout)


def green(text: str) -> str:
    return _styled(text, "32", sys.stdout)


def red(text: str) -> str:
    """Mark what goes to standard error."""
    return _styled(text, "31", sys.stderr)


def _styled(text: str, code: str, stream: TextIO) -> str:
    plain = not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"


def most_rows() -> int | None:
    """Return how many rows of a table to show on a terminal; None for all, in a pipe or a file."""
    if not sys.stdout.isatty():
        return None
    return max(MOST_ROWS, shutil.get_terminal_size().lines - _OTHER_LINES)


def bar(quiet: bool, uri: str) -> Bar | None:
    """Return the argument ``progress``: a bar with the name of a file, or nothing."""
    return None if quiet else Bar(safe(_core.without_secrets(to_uri(uri))))


def note(quiet: bool, text: str) -> None:
    """Tell the user something beside the result."""
    if not quiet:
        print(text, file=sys.stderr)
