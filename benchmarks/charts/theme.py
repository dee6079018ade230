"""The look of all charts: colours for light and dark pages, sizes, and the SVG files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.results import LIMIT, US

# The other ways of the ranks to load a model, beside a shared load (benchmarks/scale/run.py).
WITHOUT_US = ("every rank reads all", "every rank reads its slices", "peer to peer")


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
        | dict(zip(WITHOUT_US, ("#d55e00", "#009e73", "#aa4499"), strict=True)),
    ),
    Colours(
        *("dark", "#56b4e9", "#646e79", "#e6edf3", "#9198a1", "#3d444d"),
        {"tensorizer": "#f0883e", "safetensors": "#3fb68b", "torch": "#d59bd8", LIMIT: "#9198a1"}
        | dict(zip(WITHOUT_US, ("#f0883e", "#3fb68b", "#d59bd8"), strict=True)),
    ),
)

# Sizes in points. A picture is as wide as the text of a page on GitHub.
WIDTH = 624.0
SIZE, SMALL = 9.0, 8.0


def new_figure(height: float) -> Any:
    """Return a figure of matplotlib, as wide as a page and `height` points high."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    # Makes the files reproducible: the same numbers give the same file.
    matplotlib.rcParams["svg.hashsalt"] = US
    return pyplot.figure(figsize=(WIDTH / 72, height / 72))


def write(figure: Any, path: Path, title: str, description: str) -> None:
    """Write an SVG file that has `description` in its metadata, and close the figure."""
    from matplotlib import pyplot

    about = {"Title": title, "Description": description, "Creator": None, "Date": None}
    figure.savefig(path, format="svg", transparent=True, metadata=about)
    pyplot.close(figure)


def plain_axes(axes: Any, colours: Colours) -> None:
    """Leave only what the values need: a light grid, and labels without a frame."""
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_facecolor("none")
    axes.grid(True, color=colours.grid, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(colors=colours.muted, labelsize=SMALL, length=0)
