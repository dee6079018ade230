"""Box plots: how long the repetitions of a load took, and how much they vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.charts.theme import SIZE, SMALL, Chart, Colours
from benchmarks.harness.results import Rows, quantile


@dataclass(frozen=True)
class Boxes:
    """For each way, the times of some libraries."""

    seconds: Mapping[str, Mapping[str, Sequence[float]]]

    @property
    def height(self) -> float:
        return 70 + 35.0 * len(self.seconds)

    def lines(self) -> list[str]:
        lines = []
        for way, of in self.seconds.items():
            for library, values in of.items():
                shown = (quantile(values, part) for part in (0, 0.25, 0.5, 0.75, 1))
                lines.append(f"{way}, {library}: " + " ".join(f"{v * 1e3:.0f}" for v in shown))
        return lines

    def draw(self, axes: Any, colours: Colours) -> None:
        from matplotlib.patches import Patch

        for i, of in enumerate(self.seconds.values()):
            for j, (library, values) in enumerate(of.items()):
                colour = colours.of(library)
                axes.boxplot(
                    [v * 1e3 for v in values],
                    positions=[i + 0.4 * j],
                    widths=0.3,
                    orientation="horizontal",
                    manage_ticks=False,
                    patch_artist=True,
                    boxprops={"facecolor": colour, "edgecolor": colour},
                    whiskerprops={"color": colour},
                    showcaps=False,
                    flierprops={"marker": ".", "markersize": 4, "markeredgecolor": colour},
                    medianprops={"color": colours.text, "linewidth": 1.5},
                )
        axes.grid(visible=False, axis="y")
        axes.invert_yaxis()
        axes.set_yticks([i + 0.2 for i in range(len(self.seconds))])
        axes.set_yticklabels(self.seconds, color=colours.text, size=SIZE)
        axes.set_xscale("log")
        axes.minorticks_off()
        every = [1e3 * v for of in self.seconds.values() for values in of.values() for v in values]
        ticks = [t * 10**e for e in range(5) for t in (1, 2, 5)]
        axes.set_xticks([t for t in ticks if min(every) <= t <= max(every)])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("milliseconds, shorter is better", color=colours.muted, size=SMALL)
        libraries = next(iter(self.seconds.values()))
        axes.legend(
            handles=[Patch(color=colours.of(library), label=library) for library in libraries],
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=len(libraries),
            frameon=False,
            fontsize=SIZE,
            labelcolor=colours.text,
        )


def box_chart(rows: Rows, machine: str) -> Chart:
    """Make the chart from the rows of ways.py."""
    seconds: dict[str, dict[str, list[float]]] = {}
    for name, row in rows.items():
        way, _, library = name.rpartition(", ")
        seconds.setdefault(way, {})[library] = row.warm
    mebibytes = row.bytes / (1 << 20)
    title = f"Milliseconds to load {mebibytes:.0f} MiB, {len(row.warm)} times each"
    return Chart(title, [Boxes(seconds)], f"{title}. {machine}")
