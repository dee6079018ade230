"""Curves: what a benchmark found for several values of x."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.charts.theme import SIZE, SMALL, Colours
from benchmarks.harness.results import LIMIT, US, Panel, short

_MARKERS = {US: "o", "tensorizer": "s", "safetensors": "^", "torch": "D"}


@dataclass(frozen=True)
class Curves:
    panel: Panel
    height: float = 230.0

    def lines(self) -> list[str]:
        lines = [f"{self.panel.title}: {self.panel.y} by {self.panel.x}"]
        for curve, points in self.panel.curves.items():
            shown = list(points.items())[:: max(1, len(points) // 12)]
            lines.append(f"  {curve}: " + ", ".join(f"{x:g} {y:.3g}" for x, y in shown))
        return lines

    def draw(self, axes: Any, colours: Colours) -> None:
        panel = self.panel
        styles: dict[str, int] = {}
        for curve, points in panel.curves.items():
            library = curve.partition(",")[0]
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
        axes.legend(
            frameon=False,
            fontsize=SMALL - 1,
            labelcolor=colours.text,
            labelspacing=0.25,
            handlelength=2,
        )
