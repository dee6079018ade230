"""Bars of speeds, beside the limit of the machine: the chart of the README.

A bar is the best round of one row of a JSON file, in GB/s (10^9 bytes), and a line across it is
that of the bare work. The machine is that of the newest run that measured loads of a whole model.
Each panel comes from the run on that machine that measured most of its bars, and of several from
the newest; a panel, a bar or a line that was not measured is left out. Loads onto a GPU are the
exception: the newest run with one, of those with the most bytes, has a scale of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.charts.theme import SIZE, SMALL, Chart, Colours
from benchmarks.harness.bare import READ, READ_ALL, READ_CRC32, WRITE, WRITE_ALL, WRITE_CRC32
from benchmarks.harness.results import US, Run


@dataclass(frozen=True)
class Comparison:
    """The rows that one panel compares, and for notes of bars the rows of their limits."""

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
            "safetensors, pread": ("safetensors", ""),
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
# All but tensorizer load the same safetensors file.
ONTO_GPU = Comparison(
    "Load onto a GPU",
    "from /dev/shm",
    "large",
    {
        "us, safetensors": (US, ""),
        "InstantTensor": ("InstantTensor", ""),
        "fastsafetensors": ("fastsafetensors", ""),
        "tensorizer": ("tensorizer", ""),
        "Run:ai streamer": ("Run:ai streamer", ""),
        "safetensors": ("safetensors", ""),
    },
    {"": "limit, read and copy"},
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


@dataclass(frozen=True)
class Bars:
    title: str
    subtitle: str
    bars: tuple[Bar, ...]  # the fastest first
    rounds: int = 0
    most: float = 1.0  # the largest speed of all panels, which share their scale

    @property
    def height(self) -> float:
        return 38 + 17.0 * len(self.bars)

    def lines(self) -> list[str]:
        lines = [f"{self.title} ({self.subtitle}):"]
        for bar in self.bars:
            limit = f" (bare work: {bar.limit:.2f})" if bar.limit else ""
            lines.append(f"  {bar.label}{', ' * bool(bar.note)}{bar.note}: {bar.speed:.2f}{limit}")
        return lines

    def draw(self, axes: Any, colours: Colours) -> None:
        axes.grid(visible=False)
        axes.set_xlim(0, self.most * 1.6)
        axes.set_xticks([])
        axes.set_yticks(range(len(self.bars)), [bar.label for bar in self.bars])
        axes.tick_params(axis="y", labelsize=SIZE, labelcolor=colours.text)
        axes.set_title(self.title, color=colours.text, size=SIZE, weight="bold", loc="left")
        axes.set_title(self.subtitle, color=colours.muted, size=SMALL, loc="right")
        for y, bar in enumerate(self.bars):
            axes.barh(y, bar.speed, 0.65, color=colours.ours if bar.ours else colours.theirs)
            end, text = bar.speed, f"{bar.speed:.2f}  {bar.note}"
            if bar.limit:
                axes.plot([bar.limit] * 2, (y - 0.5, y + 0.5), color=colours.muted, lw=1)
                # The line must not cross the text.
                width = 0.05 * self.most * len(text)
                end = bar.limit if 0 < bar.limit - end < width else end
            axes.annotate(
                *(text, (end, y), (4, 0)),
                textcoords="offset points",
                color=colours.text,
                size=SIZE,
                va="center_baseline",
                weight="bold" if bar.ours else "normal",
            )
        axes.set_ylim(max(len(self.bars), 2) - 0.4, -0.6)


def panel_of(comparison: Comparison, run: Run) -> Bars:
    """Return a panel of what was measured; without bars if this library was not."""
    rows = run.rows(comparison.workload)

    def speed_of(row: str) -> float | None:
        seconds = rows[row].best() if row in rows else None
        return rows[row].bytes / seconds / 1e9 if seconds else None

    ours = rows.get(next(iter(comparison.choices)))
    if ours is None or not ours.warm:
        return Bars(comparison.title, "", ())
    bars = [
        Bar(label, note, speed, speed_of(comparison.limits.get(note, "")))
        for row, (label, note) in comparison.choices.items()
        if (speed := speed_of(row))
    ]
    bars.sort(key=lambda bar: bar.speed, reverse=True)
    subtitle = f"{ours.bytes / (1 << 30):.3g} GiB {comparison.source}"
    return Bars(comparison.title, subtitle, tuple(bars), len(ours.warm))


def bytes_of(comparison: Comparison, run: Run) -> int:
    rows = run.rows(comparison.workload)
    row = rows.get(next(iter(comparison.choices)))
    return row.bytes if row else 0


def bar_chart(runs: Sequence[Run]) -> Chart:
    """Make the chart from runs, which are sorted, the newest first."""
    measured = [run for run in runs if panel_of(COMPARISONS[0], run).bars]
    if not measured:
        sys.exit("there are no results of the workload transformer: run `make bench` first")
    machine = measured[0].machine
    same = [run for run in runs if run.machine == machine]
    panels: list[Bars] = []
    dates = set()
    for comparison in COMPARISONS:
        run = max(same, key=lambda run: len(panel_of(comparison, run).bars))
        if (panel := panel_of(comparison, run)).bars:
            panels.append(panel)
            dates.add(run.date[:10])
    most = max(bar.speed for panel in panels for bar in panel.bars)
    rounds = sorted({str(panel.rounds) for panel in panels})
    footnote = (
        f"{machine}, best of {' or '.join(rounds)} rounds, {' and '.join(sorted(dates))}.\n"
        "Files are in the page cache. Servers run on the same CPUs."
    )
    scaled = [replace(panel, most=most) for panel in panels]
    if gpus := [run for run in runs if str(run.found.get("device", "")).startswith("cuda")]:
        run = max(gpus, key=lambda run: (bytes_of(ONTO_GPU, run), run.date))
        panel = panel_of(ONTO_GPU, run)
        scaled.append(replace(panel, most=max(bar.speed for bar in panel.bars)))
        footnote += (
            f"\nThe GPU is in another machine: {run.machine}, {run.date[:10]}.\n"
            "Its bars have a scale of their own."
        )
    headline = "GB/s, higher is better. A line: the bare work."
    return Chart(f"Speed of {US}", scaled, footnote, headline, columns=1)
