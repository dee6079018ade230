"""Text for terminals: escaped names, sizes and tables."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Sequence
from typing import Literal

from tensorizer_ops._front.inspection import File

_WIDEST = 80


def safe(text: str) -> str:
    """Escape what a terminal might act on: control characters, and those that reorder text."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def name_text(name: str) -> str:
    """Return the name of a tensor, so that no two names are shown alike."""
    return safe(name.replace("\\", "\\\\"))


def name_of(file: File) -> str:
    """Return the path or URI of a file for output: without secrets and without quotes."""
    label = file.label()
    return safe(label[1:-1] if label.startswith("'") else label)


def size_text(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int]) -> None:
    """Print rows in columns; ``right`` are the columns that are aligned to the right.

    A very long cell moves the rest of its own row only.
    """
    lines = [header, *rows]
    widths = [
        max(len(cell) for cell in column if len(cell) <= _WIDEST or cell == column[0])
        for column in zip(*lines, strict=True)
    ]
    to_right = set(right)
    for line in lines:
        cells = [
            cell.rjust(width) if number in to_right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def bar(quiet: bool) -> Literal[True] | None:
    """Return the argument ``progress``: a bar on a terminal that tqdm can draw, or nothing."""
    on_terminal = not quiet and sys.stderr.isatty()
    return True if on_terminal and importlib.util.find_spec("tqdm") else None


def note(quiet: bool, text: str) -> None:
    """Tell the user something beside the result."""
    if not quiet:
        print(text, file=sys.stderr)
