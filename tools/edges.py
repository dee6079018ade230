"""Shared by check_layers.py and check_imports.py: checks what files depend on against a table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType

Table = Mapping[str, Collection[str]]


def faults_of(
    files: Table,
    allowed: Table,
    layer_of: Callable[[str], str],
    everywhere: Collection[str] = (),
    exceptions: Table = MappingProxyType({}),
) -> list[str]:
    """Return dependencies that are not allowed, those that are but unused, and cycles.

    Args:
        files: each file, and the files that it depends on.
        allowed: the table: each layer, and the layers that it may depend on beside itself.
        layer_of: returns the layer of a file.
        everywhere: layers that all may depend on.
        exceptions: files, and the files or layers that they may depend on as well.
    """
    faults = []
    used: dict[str, set[str]] = {layer: set() for layer in allowed}
    for name, others in files.items():
        layer, more = layer_of(name), exceptions.get(name, ())
        if layer not in allowed:
            faults.append(f"{name}: its folder, {layer}, is not in the table of {sys.argv[0]}")
            continue
        for other in others:
            target = layer_of(other)
            if target in (layer, *everywhere) or {other, target} & set(more):
                continue
            used[layer].add(target)
            if target not in allowed[layer]:
                advice = f"see ALLOWED in {sys.argv[0]}, and docs/design.md"
                faults.append(f"{name} needs {other}; {layer} may not need {target} ({advice})")
        for other in sorted(set(more) - {*others, *map(layer_of, others)}):
            faults.append(f"{name} no longer needs {other}: take it out of the exceptions")
    for layer in allowed:
        for other in sorted(set(allowed[layer]) - used[layer]):
            faults.append(f"{layer} no longer needs {other}: take it out of the table")
    for what, edges in (("layers", allowed), ("files", files)):
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            faults.append(f"{what} depend on each other: {' -> '.join(error.args[1])}")
    return faults
