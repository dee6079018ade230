"""Letter-value plots: how long the repetitions of a load took, and how much they vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.charts.theme import SIZE, SMALL, Chart, Colours
from benchmarks.harness.results import Rows, quantile


def letter_values(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return the ends of the boxes, from the widest one to the middle half.

    The boxes hold 1 - 1/2, 1 - 1/4, 1 - 1/8, … of the values, as long as four values or more are
    outside of them: fewer would say nothing about the tails.
    """
    boxes: list[tuple[float, float]] = []
    outside = 0.5
    while outside * len(values) >= 4 or not boxes:
        boxes.append((quantile(values, outside / 2), quantile(values, 1 - outside / 2)))
        outside /= 2
    return boxes[::-1]


@dataclass(frozen=True)
class LetterValues:
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
                _draw_boxes(axes, [v * 1e3 for v in values], i + 0.4 * j, colours, library)
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


def letter_value_chart(rows: Rows, machine: str) -> Chart:
    """Make the chart from the rows of ways.py."""
    seconds: dict[str, dict[str, list[float]]] = {}
    for name, row in rows.items():
        way, _, library = name.rpartition(", ")
        seconds.setdefault(way, {})[library] = row.warm
    mebibytes = row.bytes / (1 << 20)
    title = f"Milliseconds to load {mebibytes:.0f} MiB, {len(row.warm)} times each"
    return Chart(title, [LetterValues(seconds)], f"{title}. {machine}")


def _draw_boxes(
    axes: Any, values: Sequence[float], middle: float, colours: Colours, library: str
) -> None:
    boxes = letter_values(values)
    for number, (low, high) in enumerate(boxes, 1):
        axes.barh(
            *(middle, high - low, 0.32 * number / len(boxes), low),
            color=colours.of(library),
            alpha=0.35 + 0.5 * number / len(boxes),
            linewidth=0,
        )
    outside = [v for v in values if not boxes[0][0] <= v <= boxes[0][1]]
    axes.plot(outside, [middle] * len(outside), ".", color=colours.of(library), markersize=3)
    axes.plot([quantile(values, 0.5)] * 2, [middle - 0.16, middle + 0.16], color=colours.text)
