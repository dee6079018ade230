"""Tables, as text for terminals and as HTML for notebooks. Names of tensors in them are escaped."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

# The most tensors that a text or a notebook shows.
MOST_ROWS = 20
# A cell that is wider moves the rest of its own row only.
_WIDEST = 80
# How much of a text is shown where there is no room for all of it.
_MOST_TEXT = 200


class Table(NamedTuple):
    """Rows in columns. Without a header, the first column has the names of the rows."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()  # the columns that are aligned to the right
    more: int = 0  # rows that are not shown

    def lines(self, bold: Callable[[str], str] = str) -> Iterator[str]:
        """Yield the lines of the table; ``bold`` marks what heads a column or a row."""
        lines = [self.header, *self.rows] if self.header else self.rows
        widths = [
            max(len(cell) for cell in column if len(cell) <= _WIDEST or cell == column[0])
            for column in zip(*lines, strict=True)
        ]
        for number, line in enumerate(lines):
            cells = [
                cell.rjust(width) if column in self.right else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            if not self.header:
                cells[0] = bold(cells[0])
            text = "  ".join(cells).rstrip()
            yield bold(text) if self.header and number == 0 else text
        if self.more:
            yield f"... {self.more} more"

    def html(self, caption: str = "") -> str:
        """Return the table in HTML that takes its colours from the page."""
        style = "text-align: left; white-space: nowrap"
        lines = [f'<caption style="{style}">{html.escape(caption)}</caption>'] if caption else []
        if self.header:
            lines.append(f"<thead>{self._html_row(self.header, 'th')}</thead>")
        lines += (self._html_row(row, "td") for row in self.rows)
        if self.more:
            lines.append(self._html_row([f"... {self.more} more"], "td"))
        # Notebooks would take dollars in names for formulas.
        return "\n".join(['<table class="tex2jax_ignore mathjax_ignore">', *lines, "</table>"])

    def _html_row(self, cells: Sequence[str], tag: str) -> str:
        made = []
        for column, cell in enumerate(cells):
            kind = tag if self.header or column else "th"
            side = "right" if column in self.right else "left"
            wrap = "white-space: nowrap" if len(cell) <= _WIDEST else "overflow-wrap: anywhere"
            text = html.escape(shortened(cell))
            made.append(f'<{kind} style="text-align: {side}; {wrap}">{text}</{kind}>')
        return f"<tr>{''.join(made)}</tr>"


def table_of_tensors(
    tensors: Iterable[tuple[str, str | None, Sequence[int], int]], more: int = 0
) -> Table:
    """Return a table of tensors, each given by its name, type, shape and size in memory."""
    rows = [
        (name_text(name), dtype or "unknown", str(list(shape)), size_text(size))
        for name, dtype, shape, size in tensors
    ]
    return Table(("name", "dtype", "shape", "size"), rows, (3,), more)


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


def shortened(text: str) -> str:
    """Return a text, or the beginning of a long one."""
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "..."


def size_text(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


def tensors_in_words(count: int) -> str:
    """Return "1 tensor", "2 tensors" and so on."""
    return f"{count} tensor{'' if count == 1 else 's'}"
