"""Draws the chart of the README from benchmarks/results.

    python benchmarks/chart.py [--check]

A bar is the best round of one row of a JSON file, in GB/s (10^9 bytes). The machine is that of the
newest run that measured loads of a whole model. Each panel comes from the run on that machine that
measured most of its bars, and of several from the newest; a panel or a bar that was not measured is
left out.

--check draws nothing, needs no matplotlib, and fails if the pictures show other numbers.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from verdicts import Row, Rows, best_seconds

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
US = "tensorizer_ops"


@dataclass(frozen=True)
class Choice:
    """A row of the results, with the label and the note of its bar."""

    row: str
    label: str
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """The rows that one panel compares."""

    title: str
    source: str
    workload: str
    choices: tuple[Choice, ...]


NONE, CRC32, BOTH = "no checksums", "CRC32", "CRC32 + SHA-256"
COMPARISONS = (
    Comparison(
        "Load into memory",
        "transformer",
        "transformer",
        (
            Choice("us, copy", US),
            Choice("flashpack, parallel read", "flashpack"),
            Choice("tensorizer", "tensorizer"),
            Choice("torch.load", "torch.load"),
            Choice("Run:ai streamer", "Run:ai streamer"),
        ),
    ),
    Comparison(
        "Save",
        "transformer",
        "transformer",
        (
            Choice("us, save hashes=none", US, NONE),
            Choice("us, save hashes=crc32", US, CRC32),
            Choice("us, save hashes=all", US, BOTH),
            Choice("tensorizer, save", "tensorizer", BOTH),
            Choice("torch.save", "torch.save", CRC32),
            Choice("safetensors, save", "safetensors", NONE),
            Choice("flashpack, save", "flashpack", NONE),
        ),
    ),
    Comparison(
        "Load and verify",
        "transformer",
        "transformer",
        (
            Choice("us, copy, verify crc32", US, CRC32),
            Choice("us, copy, verify all", US, BOTH),
            Choice("tensorizer, verify_hash", "tensorizer", BOTH),
        ),
    ),
    Comparison(
        "Load over HTTP",
        "from nginx",
        "http",
        (Choice("us, load", US), Choice("tensorizer, load", "tensorizer")),
    ),
    Comparison(
        "Load from S3",
        "from rclone",
        "s3",
        (
            Choice("us, load", US),
            Choice("Run:ai streamer, load", "Run:ai streamer"),
            Choice("boto3 download_file", "boto3", "download to a file"),
        ),
    ),
)


@dataclass(frozen=True)
class Run:
    """The content of one JSON file."""

    date: str
    cpu: str
    threads: int
    results: dict[str, Rows]

    @property
    def machine(self) -> tuple[str, int]:
        return self.cpu, self.threads

    def bars_of(self, comparison: Comparison) -> int:
        """Return how many bars of a panel were measured; 0 if that of this library was not."""
        rows = self.results.get(comparison.workload, {})
        measured = [best_seconds(rows, choice.row) is not None for choice in comparison.choices]
        return sum(measured) if measured[0] else 0


@dataclass(frozen=True)
class Bar:
    label: str
    note: str
    speed: float

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


@dataclass(frozen=True)
class Chart:
    headline: str
    panels: tuple[Panel, ...]
    footnote: str

    def text(self) -> str:
        """Return the content of the chart as text; each picture has it as its description."""
        lines = [self.headline]
        for panel in self.panels:
            lines.append(f"{panel.title} ({panel.subtitle}):")
            for bar in panel.bars:
                lines.append(f"  {bar.label}{', ' * bool(bar.note)}{bar.note}: {bar.value}")
        return "\n".join([*lines, self.footnote])


def read_runs(folder: Path) -> list[Run]:
    """Return the runs, the newest first."""
    runs = []
    for path in folder.glob("*.json"):
        content: dict[str, Any] = json.loads(path.read_text())
        machine = content["machine"]
        results = {
            workload: {name: Row(**row) for name, row in rows.items()}
            for workload, rows in content.get("results", {}).items()
        }
        runs.append(Run(machine["date"], machine["cpu"], machine["threads"], results))
    return sorted(runs, key=lambda run: run.date, reverse=True)


def panel_of(comparison: Comparison, rows: Rows) -> Panel:
    bars = []
    for choice in comparison.choices:
        if seconds := best_seconds(rows, choice.row):
            bars.append(Bar(choice.label, choice.note, rows[choice.row].bytes / seconds / 1e9))
    size = rows[comparison.choices[0].row].bytes / (1 << 30)
    return Panel(
        comparison.title,
        f"{size:.3g} GiB {comparison.source}",
        tuple(sorted(bars, key=lambda bar: bar.speed, reverse=True)),
    )


def chart_of(runs: Sequence[Run]) -> Chart:
    """Make the chart from runs, which are sorted, the newest first."""
    newest = next((run for run in runs if run.bars_of(COMPARISONS[0])), None)
    if newest is None:
        sys.exit(f"no run in {RESULTS} has the workload transformer: run `make bench` first")
    panels, dates, rounds = [], set(), set()
    for comparison in COMPARISONS:
        same = [run for run in runs if run.machine == newest.machine]
        run = max(same, key=lambda run: run.bars_of(comparison))
        if run.bars_of(comparison) == 0:
            continue
        rows = run.results[comparison.workload]
        panels.append(panel_of(comparison, rows))
        dates.add(run.date[:10])
        rounds.add(str(len(rows[comparison.choices[0].row].ready["warm"])))
    cpu = re.sub(r"\((R|TM)\)", "", newest.cpu).removesuffix(" Processor")
    footnote = (
        f"{cpu}, {newest.threads} CPUs, best of {' or '.join(sorted(rounds))} rounds, "
        f"{' and '.join(sorted(dates))}. "
        "Files are in the page cache. Servers run on the same CPUs."
    )
    return Chart("GB/s, higher is better", tuple(panels), footnote)


@dataclass(frozen=True)
class Colours:
    """The colours of a theme. `ours` and `theirs` differ in brightness as well as in hue."""

    name: str
    ours: str
    theirs: str
    text: str
    muted: str


THEMES = (
    Colours("light", ours="#0072b2", theirs="#9aa3ad", text="#1f2328", muted="#59636e"),
    Colours("dark", ours="#56b4e9", theirs="#646e79", text="#e6edf3", muted="#9198a1"),
)

# Sizes in points. A picture is as wide as the text of a page on GitHub.
WIDTH = 624.0
GAP = 26.0  # between the two columns
LABELS = 82.0
HEADING = 22.0
LINE = 17.0
THICKNESS = 11.0
BELOW = 13.0  # the space below a panel
HEADLINE, FOOTNOTE = 20.0, 14.0
SIZE, SMALL = 9.0, 8.0
CHARACTER = 4.8  # an upper bound on the average width of a character at SIZE


def height_of(panel: Panel) -> float:
    return HEADING + LINE * len(panel.bars) + BELOW


def columns(panels: Sequence[Panel]) -> tuple[list[Panel], list[Panel]]:
    """Split the panels, in order, into two columns of heights as similar as possible."""

    def taller(split: int) -> float:
        return max(sum(map(height_of, part)) for part in (panels[:split], panels[split:]))

    split = min(range(1, len(panels) + 1), key=taller)
    return list(panels[:split]), list(panels[split:])


def draw(chart: Chart, colours: Colours, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    # Makes the files reproducible: the same numbers give the same file.
    matplotlib.rcParams["svg.hashsalt"] = US
    parts = columns(chart.panels)
    height = max(sum(map(height_of, part)) for part in parts) + HEADLINE + FOOTNOTE
    column = (WIDTH - GAP) / 2
    bars = [bar for panel in chart.panels for bar in panel.bars]
    scale = min(
        (column - LABELS - CHARACTER * (len(f"{bar.value}  {bar.note}") + 1)) / bar.speed
        for bar in bars
    )

    figure = pyplot.figure(figsize=(WIDTH / 72, height / 72))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(height, 0)

    def write(x: float, y: float, text: str, colour: str, **options: Any) -> float:
        """Write text and return the x coordinate of its end."""
        style: dict[str, Any] = {"size": SIZE, "va": "center_baseline"} | options
        written = axes.text(x, y, text, color=colour, **style)
        end = written.get_window_extent().transformed(axes.transData.inverted()).x1
        return float(end)

    write(0, HEADLINE / 2, chart.headline, colours.muted, size=SMALL)
    for number, part in enumerate(parts):
        left, y = number * (column + GAP), HEADLINE
        for panel in part:
            end = write(left, y + HEADING / 2, panel.title, colours.text, weight="bold")
            write(end + 6, y + HEADING / 2, panel.subtitle, colours.muted, size=SMALL)
            y += HEADING
            for bar in panel.bars:
                middle, start = y + LINE / 2, left + LABELS
                weight = "bold" if bar.ours else "normal"
                write(start - 6, middle, bar.label, colours.text, ha="right")
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
                end = write(end, middle, bar.value, colours.text, weight=weight)
                write(end + 5, middle, bar.note, colours.muted, size=SMALL)
                y += LINE
            y += BELOW
    write(0, height - FOOTNOTE / 2, chart.footnote, colours.muted, size=SMALL)
    about = {"Title": f"Speed of {US}", "Description": chart.text(), "Creator": None, "Date": None}
    figure.savefig(path, format="svg", transparent=True, metadata=about)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare the pictures with the JSON")
    check = parser.parse_args().check
    chart = chart_of(read_runs(RESULTS))
    for colours in THEMES:
        path = IMAGES / f"speed-{colours.name}.svg"
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(chart, colours, path)
        elif not path.exists() or escape(chart.text()) not in path.read_text():
            sys.exit(f"{path} shows other numbers: run `python benchmarks/chart.py`")
    if not check:
        print(chart.text())


if __name__ == "__main__":
    main()
