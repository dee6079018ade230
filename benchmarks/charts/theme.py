"""The look of all charts: colours for light and dark pages, and panels in an SVG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.harness.results import LIMIT, US

# The other ways of the ranks to load a model, beside a shared load (benchmarks/scale/run.py).
WITHOUT_US = ("every rank reads all", "every rank reads its slices")


@dataclass(frozen=True)
class Colours:
    """The colours of a theme. `ours` and `theirs` differ in brightness as well as in hue."""

    name: str
    ours: str
    theirs: str
    text: str
    muted: str
    grid: str
    # Of the libraries whose curves are in one chart; another one is drawn in `theirs`.
    libraries: Mapping[str, str] = field(default_factory=dict)

    def of(self, library: str) -> str:
        return self.ours if library == US else self.libraries.get(library, self.theirs)


THEMES = (
    Colours(
        *("light", "#0072b2", "#9aa3ad", "#1f2328", "#59636e", "#d1d9e0"),
        {"tensorizer": "#d55e00", "safetensors": "#009e73", "torch": "#aa4499", LIMIT: "#59636e"}
        | dict(zip(WITHOUT_US, ("#d55e00", "#009e73"), strict=True)),
    ),
    Colours(
        *("dark", "#56b4e9", "#646e79", "#e6edf3", "#9198a1", "#3d444d"),
        {"tensorizer": "#f0883e", "safetensors": "#3fb68b", "torch": "#d59bd8", LIMIT: "#9198a1"}
        | dict(zip(WITHOUT_US, ("#f0883e", "#3fb68b"), strict=True)),
    ),
)

# Sizes in points. A picture is as wide as the text of a page on GitHub.
WIDTH = 624.0
SIZE, SMALL = 9.0, 8.0


class Drawing(Protocol):
    """What a panel of a chart shows, on axes of its own."""

    @property
    def height(self) -> float: ...

    def lines(self) -> list[str]:
        """Return the content as text."""
        ...

    def draw(self, axes: Any, colours: Colours) -> None: ...


@dataclass(frozen=True)
class Chart:
    """Panels in columns, each of half the width of a page."""

    title: str
    panels: Sequence[Drawing]
    footnote: str
    headline: str = ""
    columns: int = 2

    def text(self) -> str:
        """Return the content of the chart as text; each picture has it as its description."""
        lines = [line for panel in self.panels for line in panel.lines()]
        return "\n".join([self.title, *lines, self.footnote])

    def draw(self, colours: Colours, path: Path) -> None:
        import matplotlib

        matplotlib.use("svg")
        from matplotlib import pyplot

        # Makes the files reproducible: the same numbers give the same file.
        matplotlib.rcParams["svg.hashsalt"] = US
        columns = min(self.columns, len(self.panels))
        width = WIDTH if columns < self.columns else WIDTH / 2 * columns
        rows = [self.panels[i : i + columns] for i in range(0, len(self.panels), columns)]
        heights = [max(panel.height for panel in row) for row in rows]
        figure = pyplot.figure(figsize=(width / 72, (sum(heights) + 20) / 72), layout="constrained")
        grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights).flatten()
        for panel, axes in zip(self.panels, grid, strict=False):
            for side in axes.spines.values():
                side.set_visible(False)
            axes.set_facecolor("none")
            axes.grid(True, color=colours.grid, linewidth=0.5)
            axes.set_axisbelow(True)
            axes.tick_params(colors=colours.muted, labelsize=SMALL, length=0)
            panel.draw(axes, colours)
        for axes in grid[len(self.panels) :]:
            axes.set_axis_off()
        figure.suptitle(self.headline, x=0, ha="left", color=colours.muted, size=SMALL)
        figure.supxlabel(self.footnote, x=0, ha="left", color=colours.muted, size=SMALL)
        about = {"Title": self.title, "Description": self.text(), "Creator": None, "Date": None}
        figure.savefig(path, format="svg", transparent=True, metadata=about)
        pyplot.close(figure)
