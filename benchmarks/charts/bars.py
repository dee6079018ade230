"""Bars of speeds, beside the limit of the machine: the chart of the README.

A bar is the best round of one row of a JSON file, in GB/s (10^9 bytes), and a line across it is
that of the bare work. The machine is that of the newest run that measured loads of a whole model.
Each panel comes from the run on that machine that measured most of its bars, and of several from
the newest; a panel, a bar or a line that was not measured is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.charts.theme import SIZE, SMALL, WIDTH, Colours, new_figure, write
from benchmarks.harness.bare import READ, READ_ALL, READ_CRC32, WRITE, WRITE_ALL, WRITE_CRC32
from benchmarks.harness.results import US, Run


@dataclass(frozen=True)
class Comparison:
    """The rows that one panel compares, and for each note of a bar the row of its limit."""

    title: str
    source: str
    workload: str
    choices: dict[str, tuple[str, str]]  # the label and the note of each row's bar
    limits: dict[str, str]


NONE, CRC32, BOTH = "no checksums", "CRC32", "CRC32 + SHA-256"
DOWNLOAD = "download to a file"
COMPARISONS = (
    Comparison(
        "Load into memory",
        "transformer",
        "transformer",
        {
            "us, copy": (US, ""),
            "flashpack, parallel read": ("flashpack", ""),
            "tensorizer": ("tensorizer", ""),
            "torch.load": ("torch.load", ""),
            "Run:ai streamer": ("Run:ai streamer", ""),
        },
        {"": READ.name},
    ),
    Comparison(
        "Save",
        "transformer",
        "transformer",
        {
            "us, save hashes=none": (US, NONE),
            "us, save hashes=crc32": (US, CRC32),
            "us, save hashes=all": (US, BOTH),
            "tensorizer, save": ("tensorizer", BOTH),
            "torch.save": ("torch.save", CRC32),
            "safetensors, save": ("safetensors", NONE),
            "flashpack, save": ("flashpack", NONE),
        },
        {NONE: WRITE.name, CRC32: WRITE_CRC32.name, BOTH: WRITE_ALL.name},
    ),
    Comparison(
        "Load and verify",
        "transformer",
        "transformer",
        {
            "us, copy, verify crc32": (US, CRC32),
            "us, copy, verify all": (US, BOTH),
            "tensorizer, verify_hash": ("tensorizer", BOTH),
        },
        {CRC32: READ_CRC32.name, BOTH: READ_ALL.name},
    ),
    Comparison(
        "Load over HTTP",
        "from nginx",
        "http",
        {"us, load": (US, ""), "tensorizer, load": ("tensorizer", "")},
        {"": "bare libcurl, load"},
    ),
    Comparison(
        "Load from S3",
        "from rclone",
        "s3",
        {
            "us, load": (US, ""),
            "Run:ai streamer, load": ("Run:ai streamer", ""),
            "boto3 download_file": ("boto3", DOWNLOAD),
        },
        {"": "bare libcurl, load", DOWNLOAD: "bare libcurl, load"},
    ),
)


@dataclass(frozen=True)
class Bar:
    label: str
    note: str
    speed: float
    limit: float | None  # the speed of the bare work

    @property
    def ours(self) -> bool:
        return self.label == US

    @property
    def value(self) -> str:
        return f"{self.speed:.2f}"


@dataclass(frozen=True)
class Panel:
    title: str
    subtitle: str
    bars: tuple[Bar, ...]  # the fastest first
    rounds: int = 0


@dataclass(frozen=True)
class BarChart:
    headline: str
    panels: tuple[Panel, ...]
    footnote: str

    def text(self) -> str:
        """Return the content of the chart as text; each picture has it as its description."""
        lines = [self.headline]
        for panel in self.panels:
            lines.append(f"{panel.title} ({panel.subtitle}):")
            for bar in panel.bars:
                limit = f" (bare work: {bar.limit:.2f})" if bar.limit else ""
                lines.append(f"  {bar.label}{', ' * bool(bar.note)}{bar.note}: {bar.value}{limit}")
        return "\n".join([*lines, self.footnote])

    def draw(self, colours: Colours, path: Path) -> None:
        from matplotlib.patches import Rectangle

        parts = columns(self.panels)
        height = max(sum(map(height_of, part)) for part in parts) + HEADLINE + FOOTNOTE
        column = (WIDTH - GAP) / 2
        bars = [bar for panel in self.panels for bar in panel.bars]
        scale = min(
            (column - LABELS - CHARACTER * (len(f"{bar.value}  {bar.note}") + 1)) / bar.speed
            for bar in bars
        )
        figure = new_figure(height)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, WIDTH)
        axes.set_ylim(height, 0)

        def put(x: float, y: float, text: str, colour: str, **options: Any) -> float:
            """Write text and return the x coordinate of its end."""
            style: dict[str, Any] = {"size": SIZE, "va": "center_baseline"} | options
            written = axes.text(x, y, text, color=colour, **style)
            end = written.get_window_extent().transformed(axes.transData.inverted()).x1
            return float(end)

        put(0, HEADLINE / 2, self.headline, colours.muted, size=SMALL)
        for number, part in enumerate(parts):
            left, y = number * (column + GAP), HEADLINE
            for panel in part:
                end = put(left, y + HEADING / 2, panel.title, colours.text, weight="bold")
                put(end + 6, y + HEADING / 2, panel.subtitle, colours.muted, size=SMALL)
                y += HEADING
                for bar in panel.bars:
                    middle, start = y + LINE / 2, left + LABELS
                    weight = "bold" if bar.ours else "normal"
                    put(start - 6, middle, bar.label, colours.text, ha="right")
                    axes.add_patch(
                        Rectangle(
                            (start, middle - THICKNESS / 2),
                            bar.speed * scale,
                            THICKNESS,
                            color=colours.ours if bar.ours else colours.theirs,
                            linewidth=0,
                        )
                    )
                    end = start + bar.speed * scale + 5
                    if bar.limit:
                        line = start + bar.limit * scale
                        axes.plot([line] * 2, (y, y + LINE), color=colours.muted, lw=1)
                        # The line must not cross the text.
                        width = CHARACTER * len(f"{bar.value}  {bar.note}")
                        end = line + 4 if end - 5 < line < end + width else end
                    end = put(end, middle, bar.value, colours.text, weight=weight)
                    put(end + 5, middle, bar.note, colours.muted, size=SMALL)
                    y += LINE
                y += BELOW
        put(0, height - FOOTNOTE / 2, self.footnote, colours.muted, size=SMALL)
        write(figure, path, f"Speed of {US}", self.text())


def panel_of(comparison: Comparison, run: Run) -> Panel:
    """Return a panel of what was measured; without bars if this library was not."""
    rows = run.rows(comparison.workload)

    def speed_of(row: str) -> float | None:
        seconds = rows[row].best() if row in rows else None
        return rows[row].bytes / seconds / 1e9 if seconds else None

    ours = rows.get(next(iter(comparison.choices)))
    if ours is None or not ours.warm:
        return Panel(comparison.title, "", ())
    bars = [
        Bar(label, note, speed, speed_of(comparison.limits[note]))
        for row, (label, note) in comparison.choices.items()
        if (speed := speed_of(row))
    ]
    bars.sort(key=lambda bar: bar.speed, reverse=True)
    subtitle = f"{ours.bytes / (1 << 30):.3g} GiB {comparison.source}"
    return Panel(comparison.title, subtitle, tuple(bars), len(ours.warm))


def bar_chart(runs: Sequence[Run]) -> BarChart:
    """Make the chart from runs, which are sorted, the newest first."""
    measured = [run for run in runs if panel_of(COMPARISONS[0], run).bars]
    if not measured:
        sys.exit("there are no results of the workload transformer: run `make bench` first")
    machine = measured[0].machine
    same = [run for run in runs if run.machine == machine]
    panels, dates, rounds = [], set(), set()
    for comparison in COMPARISONS:
        run = max(same, key=lambda run: len(panel_of(comparison, run).bars))
        if (panel := panel_of(comparison, run)).bars:
            panels.append(panel)
            dates.add(run.date[:10])
            rounds.add(str(panel.rounds))
    footnote = (
        f"{machine}, best of {' or '.join(sorted(rounds))} rounds, {' and '.join(sorted(dates))}. "
        "Files are in the page cache. Servers run on the same CPUs."
    )
    return BarChart("GB/s, higher is better. A line: the bare work.", tuple(panels), footnote)


# Sizes in points.
GAP = 26.0  # between the two columns
LABELS = 82.0
HEADING = 22.0
LINE = 17.0
THICKNESS = 11.0
BELOW = 13.0  # the space below a panel
HEADLINE, FOOTNOTE = 20.0, 14.0
CHARACTER = 4.8  # an upper bound on the average width of a character at SIZE


def height_of(panel: Panel) -> float:
    return HEADING + LINE * len(panel.bars) + BELOW


def columns(panels: Sequence[Panel]) -> tuple[list[Panel], list[Panel]]:
    """Split the panels, in order, into two columns of heights as similar as possible."""

    def taller(split: int) -> float:
        return max(sum(map(height_of, part)) for part in (panels[:split], panels[split:]))

    split = min(range(1, len(panels) + 1), key=taller)
    return list(panels[:split]), list(panels[split:])
