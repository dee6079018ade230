"""Curves: what a benchmark found for several values of x."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.charts.theme import SIZE, SMALL, WIDTH, Colours, new_figure, plain_axes, write
from benchmarks.harness.results import LIMIT, US, Panel, short


@dataclass(frozen=True)
class CurveChart:
    title: str
    panels: tuple[Panel, ...]
    footnote: str

    def text(self) -> str:
        lines = [self.title]
        for panel in self.panels:
            lines.append(f"{panel.title}: {panel.y} by {panel.x}")
            for curve, points in panel.curves.items():
                shown = list(points.items())[:: max(1, len(points) // 12)]
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
            *(list(points), list(points.values())),
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
        values = sorted({x for points in panel.curves.values() for x in points})
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
