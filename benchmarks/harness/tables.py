"""Formats results and verdicts as tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.harness.verdicts import Row, Rows, Verdict, When

# Results of smaller workloads are all overhead, so they are in milliseconds.
SMALL = 32 << 20


def table(head: Sequence[str], lines: Sequence[Sequence[str]], left: int, markdown: bool) -> str:
    """Format a table; the first `left` columns and the last are left-aligned."""
    columns = range(len(head))
    widths = [max(len(line[i]) for line in (head, *lines)) for i in columns]
    to_left = [i < left or i == len(head) - 1 for i in columns]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cells[i].ljust(widths[i]) if to_left[i] else cells[i].rjust(widths[i]) for i in columns
        ]
        return f"| {' | '.join(padded)} |" if markdown else "  ".join(padded).rstrip()

    rule = ["-" * (widths[i] - (not to_left[i])) + ":" * (not to_left[i]) for i in columns]
    if not markdown:
        rule = ["-" * width for width in widths]
    return "\n".join([line(head), line(rule), *(line(cells) for cells in lines)])


def _speeds(row: Row, when: When) -> tuple[str, str]:
    """Return median and best, in GB/s, or in milliseconds for small workloads."""
    seconds = [value for value in row.ready[when] if value]
    if not seconds:
        return "-", "-"

    def show(value: float) -> str:
        if row.bytes < SMALL:
            return f"{value * 1000:.2f}"
        return f"{row.bytes / value / 1e9:.2f}"

    return show(statistics.median(seconds)), show(min(seconds))


def results(title: str, rows: Rows, markdown: bool) -> str:
    # The columns for cold files are omitted if there are no such results.
    times: list[When] = ["warm"]
    if any(row.ready["cold"] for row in rows.values()):
        times.append("cold")
    lines = []
    for name, row in rows.items():
        memory = "-" if row.memory is None else f"{row.memory / (1 << 20):.1f}"
        speeds = (speed for when in times for speed in _speeds(row, when))
        lines.append((name, *speeds, memory, row.error or row.choice))
    size = max((row.bytes for row in rows.values()), default=0)
    head = ("", *(column for when in times for column in (when, "best")), "MiB beyond", "")
    unit = "ms" if size < SMALL else "GB/s"
    title = f"{title} ({size / (1 << 20):,.1f} MiB), {unit}"
    return f"{'### ' if markdown else ''}{title}\n\n{table(head, lines, 1, markdown)}"


def verdicts(found: Sequence[Verdict], markdown: bool) -> str:
    words = {True: "met", False: "NOT MET", None: "not measured"}
    lines = [(v.work, v.workload, v.against, v.required, v.measured, words[v.met]) for v in found]
    head = ("work", "on", "against", "at least", "measured", "")
    title = "### Targets" if markdown else "Targets"
    return f"{title}\n\n{table(head, lines, 3, markdown)}"
