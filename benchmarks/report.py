"""The tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from targets import Row, Rows, Verdict, When
from workloads import Workload


def table(head: Sequence[str], lines: Sequence[Sequence[str]], markdown: bool) -> str:
    """Columns; all but the first are aligned to the right."""
    widths = [max(len(line[i]) for line in (head, *lines)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |" if markdown else "  ".join(padded).rstrip()

    if markdown:
        rule = "|".join(
            "-" * (width + 2) if i == 0 else "-" * (width + 1) + ":"
            for i, width in enumerate(widths)
        )
        rule = f"|{rule}|"
    else:
        rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(head), rule, *(line(cells) for cells in lines)])


def _speeds(row: Row, when: When) -> tuple[str, str]:
    """Median and best, in GB/s, or in milliseconds for workloads that are all overhead."""
    seconds = [value for value in row.ready[when] if value]
    if not seconds:
        return "-", "-"

    def show(value: float) -> str:
        if row.bytes < 32 << 20:
            return f"{value * 1000:.2f} ms"
        return f"{row.bytes / value / 1e9:.2f}"

    return show(statistics.median(seconds)), show(min(seconds))


def results(workload: Workload, rows: Rows, markdown: bool) -> str:
    lines = []
    for name, row in rows.items():
        memory = "-" if row.memory is None else f"{row.memory / (1 << 20):.1f}"
        note = row.error or row.choice
        lines.append((name, *_speeds(row, "warm"), *_speeds(row, "cold"), memory, note))
    size = max((row.bytes for row in rows.values()), default=0)
    head = ("GB/s", "warm", "best", "cold", "best", "MiB beyond tensors", "")
    title = f"{workload.title} ({size / (1 << 20):,.0f} MiB)"
    return f"{'### ' if markdown else ''}{title}\n\n{table(head, lines, markdown)}"


def verdicts(found: Sequence[Verdict], markdown: bool) -> str:
    words = {True: "met", False: "NOT MET", None: "not measured"}
    lines = [(v.work, v.workload, v.against, v.required, v.measured, words[v.met]) for v in found]
    head = ("work", "on", "against", "at least", "measured", "")
    title = "### Targets" if markdown else "Targets"
    return f"{title}\n\n{table(head, lines, markdown)}"
