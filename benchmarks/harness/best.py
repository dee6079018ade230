"""What benchmarks share that measure one matter and keep the best of some rounds."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import runs

THREADS = len(os.sched_getaffinity(0))

Results = dict[str, Any]


class Best(dict[str, float]):
    """The least seconds of each thing that was measured, by its name."""

    def keep(self, name: str, seconds: float) -> None:
        self[name] = min(seconds, self.get(name, seconds))


def measured(
    about: str | None,
    size: tuple[str, int, int],
    rounds: int,
    measure: Callable[[Path, int, int], Results],
    kind: str = "",
) -> Results:
    """Measure as the command line says, and write the results to the file that it names.

    Args:
        about: the text for ``--help``.
        size: an option for the size of what is measured, its default, and its value with
            ``--quick``.
        rounds: the default of ``--rounds``.
        measure: is called with a temporary folder, the size, and the number of rounds.
        kind: if given, a run that is not quick writes benchmarks/results/DATE-CPU-KIND.json.
    """
    name, usual, small = size
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="little data, one round")
    parser.add_argument(f"--{name}", dest="size", type=int, default=usual)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--directory", type=Path, help="where the files are (a temporary folder)")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    given = parser.parse_args()
    asked = (small, 1) if given.quick else (given.size, given.rounds)
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        machine = runs.machine(Path(folder), THREADS, ("tensorizer_ops", "torch"))
        found = measure(Path(folder), *asked)
    if kind and given.json is None and not given.quick:
        given.json = runs.path_of(machine, kind)
    if given.json:
        given.json.write_text(json.dumps({"machine": machine, "found": found}, indent=1) + "\n")
    return found
