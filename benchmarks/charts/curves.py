"""Curves, and how they are drawn: what a benchmark found for several values of x."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.charts.theme import (
    LIMIT,
    SIZE,
    SMALL,
    US,
    WIDTH,
    Colours,
    new_figure,
    plain_axes,
    write,
)

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes. The names of `curves` start with that of a library."""

    title: str
    x: str
    y: str
    log: str = ""  # the axes with a logarithmic scale, such as "xy"; the others start at 0
    curves: dict[str, Points] = field(default_factory=dict)

    def add(self, curve: str, x: float, y: float) -> None:
        self.curves.setdefault(curve, []).append((x, y))


@dataclass(frozen=True)
class CurveChart:
    title: str
    panels: tuple[Panel, ...]
    footnote: str

    @staticmethod
    def of(title: str, found: Mapping[str, Any], footnote: str) -> CurveChart:
        """Make the chart from the JSON of a benchmark that returned panels."""
        panels = tuple(Panel(**panel) for panel in found["panels"])
        return CurveChart(title, panels, footnote)

    def text(self) -> str:
        lines = [self.title]
        for panel in self.panels:
            lines.append(f"{panel.title}: {panel.y} by {panel.x}")
            for curve, points in panel.curves.items():
                shown = points[:: max(1, len(points) // 12)]
                lines.append(f"  {curve}: " + ", ".join(f"{x:g} {y:.3g}" for x, y in shown))
        return "\n".join([*lines, self.footnote])

    def draw(self, colours: Colours, path: Path) -> None:
        heading, panel_height, below, footer = 26.0, 176.0, 34.0, 16.0
        rows = (len(self.panels) + 1) // 2
        height = rows * (heading + panel_height + below) + footer
        figure = new_figure(height)
        for number, panel in enumerate(self.panels):
            row, column = divmod(number, 2)
            top = row * (heading + panel_height + below) + heading
            left, width = column * WIDTH / 2 + 40, WIDTH / 2 - 52
            place = (left / WIDTH, 1 - (top + panel_height) / height)
            axes = figure.add_axes((*place, width / WIDTH, panel_height / height))
            _draw_panel(axes, panel, colours)
        figure.text(0, 4 / height, self.footnote, color=colours.muted, size=SMALL)
        write(figure, path, self.title, self.text())


def library_of(curve: str) -> str:
    return curve.partition(",")[0]


_MARKERS = {US: "o", "tensorizer": "s", "safetensors": "^", "torch": "D"}


def _draw_panel(axes: Any, panel: Panel, colours: Colours) -> None:
    plain_axes(axes, colours)
    styles: dict[str, int] = {}
    for curve, points in panel.curves.items():
        library = library_of(curve)
        again = styles.setdefault(library, 0)
        styles[library] += 1
        dense = len(points) > 30
        axes.plot(
            *([value[i] for value in points] for i in (0, 1)),
            color=colours.of(library),
            linestyle=":" if library == LIMIT else ("-", "--", "-.")[again % 3],
            linewidth=2 if library == US else 1.4,
            marker="" if dense or library == LIMIT else _MARKERS.get(library, "v"),
            markersize=4,
            label=curve,
            zorder=3 if library == US else 2,
        )
    if "x" in panel.log:
        axes.set_xscale("log")
        values = sorted({x for points in panel.curves.values() for x, _ in points})
        axes.set_xticks(values[:: 1 + len(values) // 8])
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
    else:
        axes.set_xlim(left=0)
    if "y" in panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: short(value))
    else:
        axes.set_ylim(bottom=0)
    axes.minorticks_off()
    axes.set_title(panel.title, color=colours.text, size=SIZE, weight="bold", loc="left")
    axes.set_xlabel(panel.x, color=colours.muted, size=SMALL)
    axes.set_ylabel(panel.y, color=colours.muted, size=SMALL)
    legend = axes.legend(frameon=False, fontsize=SMALL - 1, labelspacing=0.25, handlelength=2)
    for text in legend.get_texts():
        text.set_color(colours.text)


def short(value: float) -> str:
    """Return a number as it is said: 20, 0.5, 10k, 1M."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit * (1 if name == "M" else 10):
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def as_found(panels: Sequence[Panel]) -> dict[str, Any]:
    """Return panels as the results of a benchmark, for its JSON."""
    return {"panels": [vars(panel) for panel in panels]}
