"""Draws the charts of the documentation from benchmarks/results.

    python -m benchmarks.charts.draw [--check]

The chart of the README is described in bars.py. Each of the others shows the newest run of one
benchmark, and is left out if there is none.

--check draws nothing, needs no matplotlib, and fails if the pictures show other numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from xml.sax.saxutils import escape

from benchmarks.charts.bars import bar_chart
from benchmarks.charts.curves import CurveChart
from benchmarks.charts.letter_values import LetterValueChart
from benchmarks.charts.theme import THEMES, Colours
from benchmarks.harness.recorded import Run, read_runs

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"

CURVES = {
    "scaling": "Speed by the number of connections and threads",
    "sizes": "Time by the number and the size of tensors",
    "footprint": "Memory during loads and saves",
    "scale": "Simulated starts of 1 to 1,000 nodes",
}


class Chart(Protocol):
    def text(self) -> str:
        """Return the content of the chart as text; each picture has it as its description."""
        ...

    def draw(self, colours: Colours, path: Path) -> None: ...


def charts_of(runs: Sequence[Run]) -> dict[str, Chart]:
    """Return the charts by the names of their files, from runs, the newest first."""
    charts: dict[str, Chart] = {"speed": bar_chart(runs)}
    newest = {run.kind: run for run in reversed(runs)}
    for kind, title in CURVES.items():
        if run := newest.get(kind):
            charts[kind] = CurveChart.of(title, run.found, f"{run.machine}, {run.date[:10]}.")
    if run := newest.get("ways"):
        charts["ways"] = LetterValueChart.of(run.found, f"{run.machine}, {run.date[:10]}.")
    return charts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare the pictures with the JSON")
    check = parser.parse_args().check
    for name, chart in charts_of(read_runs(RESULTS)).items():
        for colours in THEMES:
            path = IMAGES / f"{name}-{colours.name}.svg"
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                chart.draw(colours, path)
            elif not path.exists() or escape(chart.text()) not in path.read_text():
                sys.exit(f"{path} shows other numbers: run `python -m benchmarks.charts.draw`")
        if not check:
            print(chart.text(), end="\n\n")


if __name__ == "__main__":
    main()
