"""Draws the charts of the documentation from benchmarks/results.

    python -m benchmarks.charts.draw [--check]

The chart of the README is described in bars.py. Each of the others shows the newest run of one
benchmark, and is left out if there is none.

--check draws nothing, needs no matplotlib, and fails if a chart has no results or a picture shows
other numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from benchmarks.charts.bars import bar_chart
from benchmarks.charts.boxes import box_chart
from benchmarks.charts.curves import Curves
from benchmarks.charts.theme import THEMES, Chart
from benchmarks.harness.results import LIMIT, ROOT, US, Panel, Run, read_runs

IMAGES = ROOT / "docs" / "images"

CURVES = {
    "scaling": "Speed by the number of connections and threads",
    "sizes": "Time by the number and the size of tensors",
    "footprint": "Memory during loads and saves",
    "scale": "Simulated starts of 1 to 1,000 nodes",
}


def charts_of(runs: Sequence[Run]) -> dict[str, Chart]:
    """Return the charts by the names of their files, from runs, the newest first."""
    charts: dict[str, Chart] = {"speed": bar_chart(runs)}
    newest = {run.kind: run for run in reversed(runs)}
    for kind, title in CURVES.items():
        if run := newest.get(kind):
            make = {"scale": of_scale, "scaling": of_scaling}.get(kind, Run.panels)
            curves = [Curves(panel) for panel in make(run)]
            charts[kind] = Chart(title, curves, f"{run.machine}, {run.date[:10]}.")
    if run := newest.get("ways"):
        charts["ways"] = box_chart(run.rows("ways"), f"{run.machine}, {run.date[:10]}.")
    return charts


def of_scaling(run: Run) -> list[Panel]:
    """Return the panels of rows whose names end with a number of connections or threads."""
    cpus = run.machine.rpartition(", ")[2]
    panels = []
    for workload, title, x in (
        ("slow", "Connections of 40 MB/s each", "connections"),
        ("fast", "Connections to nginx on the same CPUs", "connections"),
        ("threads", f"Threads, on {cpus}", "threads"),
        ("encrypted", f"Threads, encrypted, on {cpus}", "threads"),
    ):
        panel = Panel(title, x, "GB/s", "x")
        for name, row in run.rows(workload).items():
            curve, _, number = name.rpartition(", ")
            panel.add(curve, int(number), row.bytes / min(row.warm) / 1e9)
        if workload == "slow":
            for n in panel.curves[US]:
                panel.add(f"{LIMIT}, n x 40 MB/s", n, n * 40_000_000 / 1e9)
        panels.append(panel)
    return panels


def of_scale(run: Run) -> list[Panel]:
    """Return the panels of a simulation, whose values are by store, way and number of nodes."""
    panels = []
    for title, store, value, y in (
        ("From S3, simulated, median", "S3", "median", "seconds"),
        ("From S3, simulated, 99th percentile", "S3", "99th", "seconds"),
        ("From one HTTP server, simulated", "one HTTP server", "median", "seconds"),
        ("Cost of a start from S3, simulated", "S3", "cost", "$"),
    ):
        panel = Panel(title, "nodes", y, "xy")
        for way, by_nodes in run.found[store].items():
            for nodes, one in by_nodes.items():
                cost = one["idle"] + one["store"]
                panel.add(way, int(nodes), cost if value == "cost" else one[value])
        panels.append(panel)
    return panels


def fault(charts: Mapping[str, Chart]) -> str:
    """Return what is wrong with the pictures, or an empty string."""
    for name in ("speed", "ways", *CURVES):
        if name not in charts:
            return f"there are no results of {name}"
    shown = {
        f"{name}-{colours.name}.svg": chart for name, chart in charts.items() for colours in THEMES
    }
    for path in IMAGES.glob("*.svg"):
        if path.name not in shown:
            return f"{path} is drawn from no results"
    for name, chart in shown.items():
        path = IMAGES / name
        if not path.exists() or escape(chart.text()) not in path.read_text():
            return f"{path} shows other numbers: run `python -m benchmarks.charts.draw`"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare the pictures with the JSON")
    check = parser.parse_args().check
    charts = charts_of(read_runs())
    if check:
        sys.exit(fault(charts) or 0)
    for name, chart in charts.items():
        for colours in THEMES:
            chart.draw(colours, IMAGES / f"{name}-{colours.name}.svg")
        print(chart.text(), end="\n\n")


if __name__ == "__main__":
    main()
