"""What programs print: tables of rows, times, ratios and curves."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.harness.results import Panel, Row, Rows, When, short

# Results of smaller workloads are all overhead, so they are in milliseconds.
SMALL = 32 << 20


def table(
    head: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1, markdown: bool = False
) -> str:
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


def of_rows(title: str, rows: Rows) -> str:
    """Return median and best of each row, in GB/s, or in milliseconds for small workloads."""
    times: list[When] = ["warm", "cold"] if any(row.cold for row in rows.values()) else ["warm"]
    size = max((row.bytes for row in rows.values()), default=0)

    def shown(row: Row, seconds: float) -> str:
        return f"{seconds * 1000 if size < SMALL else row.bytes / seconds / 1e9:.2f}"

    lines = []
    for name, row in rows.items():
        memory = "-" if row.memory is None else f"{row.memory / (1 << 20):.1f}"
        cells = [name]
        for when in times:
            seconds = row.cold if when == "cold" else row.warm
            cells += [shown(row, f(seconds)) if seconds else "-" for f in (statistics.median, min)]
        requests = f"{row.requests} requests in a row" if row.requests else ""
        lines.append([*cells, memory, row.error or row.choice or requests])
    head = ("", *(column for when in times for column in (when, "best")), "MiB beyond", "")
    unit = "ms" if size < SMALL else "GB/s"
    return f"{title} ({size / (1 << 20):,.1f} MiB), {unit}\n\n{table(head, lines)}"


def of_panel(panel: Panel) -> str:
    values = sorted({x for points in panel.curves.values() for x in points})
    lines = [
        [curve, *(f"{points[x]:.4g}" if x in points else "-" for x in values)]
        for curve, points in panel.curves.items()
    ]
    head = [f"{panel.y} by {panel.x}", *map(short, values)]
    return f"{panel.title}\n{table(head, lines)}\n"


def of_seconds(best: Mapping[str, float], size: int, cpu: Mapping[str, float] | None = None) -> str:
    """Return a table of the least seconds of everything that moved `size` bytes, and of CPUs."""
    cpu = cpu or {}
    lines = [
        [
            *(name, f"{seconds:.4f}", f"{size / seconds / 1e9:.2f}"),
            f"{cpu[name] / size * (1 << 30):.2f}" if name in cpu else "",
        ]
        for name, seconds in best.items()
    ]
    head = ["work", "seconds, best", "GB/s", "seconds of CPU for 1 GiB" if cpu else ""]
    return table(head, lines) + "\n"


def of_ratios(ratios: Mapping[str, float]) -> str:
    return table(["ratio", ""], [[name, f"{ratio:.2f}"] for name, ratio in ratios.items()])
