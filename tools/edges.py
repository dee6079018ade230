"""Shared by check_layers.py and check_imports.py: checks and reports on a table of edges."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter


def report(
    faults: Iterable[str],
    allowed: Mapping[str, Iterable[str]],
    used: Mapping[str, set[str]],
    files: Mapping[str, Iterable[str]],
) -> int:
    """Print the faults, edges that are allowed but unused, and cycles; return the exit status.

    Args:
        faults: the faults of single files.
        allowed: the table: each layer, and the layers that it may depend on.
        used: each layer, and the layers that it depends on.
        files: each file, and the files that it depends on.
    """
    found = list(faults)
    for layer, others in allowed.items():
        for other in sorted(set(others) - used[layer]):
            found.append(f"{layer} no longer depends on {other}: take it out of the table")
    for what, edges in (("layers", allowed), ("files", files)):
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            found.append(f"{what} depend on each other: {' -> '.join(error.args[1])}")
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0
