"""Shows the speeds of the demo as a table of text and as a picture."""

from __future__ import annotations

from pathlib import Path

Speeds = dict[str, dict[str, float]]  # GB/s, by place and way

OURS = "#2f6fde"
OTHERS = {"tensorizer": "#e0913a", "safetensors": "#8a8f98", "torch.load": "#4b4f57"}


def table(speeds: Speeds, ways: list[str]) -> str:
    """Return a table with a row per place; a dash is a way that cannot load from there."""
    width = max(map(len, speeds))
    lines = [" " * width + "".join(f"  {way}" for way in ways)]
    for place, row in speeds.items():
        cells = (f"{row[way]:.2f}" if way in row else "-" for way in ways)
        aligned = (f"  {cell:>{len(way)}}" for cell, way in zip(cells, ways, strict=True))
        lines.append(f"{place:{width}}" + "".join(aligned))
    return "\n".join(lines)


def draw(speeds: Speeds, path: Path, subtitle: str) -> None:
    """Draw the loads in Python: one group of bars per place."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, axes = pyplot.subplots(figsize=(8, 5.5), layout="constrained")
    at, ticks = 0.0, []
    for place, row in speeds.items():
        if "mapped" in place:
            continue
        colours = {"Python": OURS} | OTHERS
        bars = [(name, row[name], colour) for name, colour in colours.items() if name in row]
        ticks.append((at + (len(bars) - 1) / 2, place.strip()))
        for _, speed, colour in bars:
            axes.barh(at, speed, height=0.9, color=colour)
            axes.text(speed, at, f" {speed:.2f}", va="center", fontsize=8)
            at += 1
        at += 0.8
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.invert_yaxis()
    axes.set_xlabel("GB/s, into new memory")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.08)
    axes.set_title(f"Loads of one model\n{subtitle}", loc="left", fontsize=10)
    colours = {"tensorizer_ops": OURS} | OTHERS
    axes.legend(
        handles=[Patch(color=colour, label=name) for name, colour in colours.items()],
        frameon=False,
        loc="lower right",
    )
    figure.savefig(path, dpi=150)
