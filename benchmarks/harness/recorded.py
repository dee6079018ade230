"""The results of earlier runs, as their JSON files have them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.charts.theme import machine_name
from benchmarks.harness.verdicts import Row, Rows


@dataclass(frozen=True)
class Run:
    """The content of one JSON file."""

    kind: str  # the end of the file's name: "ways"
    date: str
    machine: str
    results: dict[str, Rows]  # of benchmarks that compare rows
    found: dict[str, Any]  # of those that measure one matter


def read_runs(folder: Path) -> list[Run]:
    """Return the runs, the newest first."""
    runs = []
    for path in folder.glob("*.json"):
        content: dict[str, Any] = json.loads(path.read_text())
        machine = content["machine"]
        results = {
            workload: {name: Row(**row) for name, row in rows.items()}
            for workload, rows in content.get("results", {}).items()
        }
        name = machine_name(machine["cpu"], machine["threads"])
        kind = path.stem.rpartition("-")[2]
        runs.append(Run(kind, machine["date"], name, results, content.get("found", {})))
    return sorted(runs, key=lambda run: run.date, reverse=True)
