"""Letter-value plots: how long the repetitions of a load took, and how much they vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.charts.theme import SIZE, SMALL, WIDTH, Colours, new_figure, plain_axes, write
from benchmarks.harness.results import US, Rows, quantile


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
class LetterValueChart:
    """For each way, the times of some libraries."""

    title: str
    seconds: Mapping[str, Mapping[str, Sequence[float]]]
    footnote: str

    @staticmethod
    def of(rows: Rows, machine: str) -> LetterValueChart:
        """Make the chart from the rows of ways.py."""
        seconds: dict[str, dict[str, list[float]]] = {}
        for name, row in rows.items():
            way, _, library = name.rpartition(", ")
            seconds.setdefault(way, {})[library] = row.warm
        mebibytes = row.bytes / (1 << 20)
        title = f"Milliseconds to load {mebibytes:.0f} MiB, {len(row.warm)} times each"
        return LetterValueChart(title, seconds, f"{title}. {machine}")

    def text(self) -> str:
        lines = [self.title]
        for way, of in self.seconds.items():
            for library, values in of.items():
                shown = (quantile(values, part) for part in (0, 0.25, 0.5, 0.75, 1))
                lines.append(f"{way}, {library}: " + " ".join(f"{v * 1e3:.0f}" for v in shown))
        return "\n".join([*lines, self.footnote])

    def draw(self, colours: Colours, path: Path) -> None:
        line, heading, below = 13.0, 24.0, 44.0
        libraries = list(next(iter(self.seconds.values())))
        block = line * len(libraries) + 9
        height = heading + block * len(self.seconds) + below
        figure = new_figure(height)
        left = 64.0
        inside = (height - heading - below) / height
        axes = figure.add_axes((left / WIDTH, below / height, 1 - (left + 12) / WIDTH, inside))
        plain_axes(axes, colours)
        axes.grid(visible=False, axis="y")
        axes.set_ylim(block * len(self.seconds), 0)
        axes.set_xscale("log")
        axes.minorticks_off()
        longest = max(max(values) for of in self.seconds.values() for values in of.values())
        shortest = min(min(values) for of in self.seconds.values() for values in of.values())
        axes.set_xlim(shortest * 1e3 / 1.15, longest * 1e3 * 1.15)
        ticks = [t * 10**e for e in range(5) for t in (1, 2, 5)]
        axes.set_xticks([t for t in ticks if shortest * 1e3 <= t <= longest * 1e3])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("milliseconds, shorter is better", color=colours.muted, size=SMALL)
        axes.set_yticks([(i + 0.5) * block - 4 for i in range(len(self.seconds))])
        axes.set_yticklabels(self.seconds, color=colours.text, size=SIZE)
        for i, of in enumerate(self.seconds.values()):
            for j, (library, values) in enumerate(of.items()):
                middle = i * block + line * (j + 0.5)
                _draw_boxes(axes, [v * 1e3 for v in values], middle, line, colours, library)
        x = left / WIDTH
        for library in libraries:
            label = figure.text(x, 1 - 14 / height, f"■ {library}", size=SIZE)
            label.set_color(colours.of(library))
            label.set_weight("bold" if library == US else "normal")
            x += 110 / WIDTH
        figure.text(0, 4 / height, self.footnote, color=colours.muted, size=SMALL)
        write(figure, path, self.title, self.text())


def _draw_boxes(
    axes: Any, values: Sequence[float], middle: float, line: float, colours: Colours, library: str
) -> None:
    from matplotlib.patches import Rectangle

    colour = colours.of(library)
    boxes = letter_values(values)
    for number, (low, high) in enumerate(boxes):
        thickness = line * 0.8 * (number + 1) / len(boxes)
        box = Rectangle((low, middle - thickness / 2), high - low, thickness, linewidth=0)
        box.set_facecolor(colour)
        box.set_alpha(0.35 + 0.5 * (number + 1) / len(boxes))
        axes.add_patch(box)
    outside = [v for v in values if not boxes[0][0] <= v <= boxes[0][1]]
    axes.plot(outside, [middle] * len(outside), ".", color=colour, markersize=3)
    median = quantile(values, 0.5)
    axes.plot([median] * 2, [middle - line * 0.4, middle + line * 0.4], color=colours.text, lw=1.5)
