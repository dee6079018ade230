"""Paths into nested dicts and lists, as which a file stores what was nested when it was saved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

Path = tuple[str | int, ...]

# What stands in front of a path that is no plain name (docs/format.md).
_NESTED_MARK = "\x1e"

Leaf = TypeVar("Leaf")


def is_nested(stored: str) -> bool:
    return stored.startswith(_NESTED_MARK)


def parse(stored: str) -> Path:
    """The path of a stored name, which the library has checked."""
    if is_nested(stored):
        return tuple(json.loads(stored[1:]))
    return (stored,)


def stored_name(path: Path) -> str:
    if len(path) == 1 and isinstance(path[0], str):
        return path[0]
    return _NESTED_MARK + json.dumps(path, separators=(",", ":"))


def public(stored: str) -> str | Path:
    """As callers see it: a plain name, or the tuple of a path."""
    return parse(stored) if is_nested(stored) else stored


def flatten(structure: Mapping[str, Any] | Sequence[Any]) -> Iterator[tuple[Path, torch.Tensor]]:
    """Every tensor of nested dicts and lists, in their order."""
    layers = [(structure, _children((), structure))]
    inside = {id(structure)}
    while layers:
        layer, children = layers[-1]
        for path, value in children:
            if isinstance(value, torch.Tensor):
                yield path, value
                continue
            if id(value) in inside:
                raise ValueError(f"the structure holds itself, at {path}")
            layers.append((value, _children(path, value)))
            inside.add(id(value))
            break
        else:
            layers.pop()
            inside.remove(id(layer))


def _children(path: Path, layer: object) -> Iterator[tuple[Path, Any]]:
    if isinstance(layer, Mapping):
        for key in layer:
            if not isinstance(key, str):
                raise TypeError(f"a key at {path} is {type(key).__name__}, and must be str")
        return (((*path, key), value) for key, value in layer.items())
    # A text is a sequence of texts, without end.
    if isinstance(layer, Sequence) and not isinstance(layer, str | bytes | bytearray | memoryview):
        return (((*path, index), value) for index, value in enumerate(layer))
    raise TypeError(f"what stands at {path} is {type(layer).__name__}, and must be a tensor")


def tree(leaves: Mapping[Path, Leaf], layer_type: Callable[[dict[Any, Any]], Any]) -> Any:
    """The layers that the paths speak of, each made what ``layer_type`` makes of a dict.

    The leaf itself, where its path is empty.
    """
    root: dict[Any, Any] = {}
    made: list[tuple[dict[Any, Any], str | int]] = []
    for path, leaf in leaves.items():
        if not path:
            return leaf
        layer = root
        for step in path[:-1]:
            if step not in layer:
                layer[step] = {}
                made.append((layer, step))
            layer = layer[step]
        layer[path[-1]] = leaf
    # What was made last is furthest from the root. A file may have any depth, so nothing recurses.
    for parent, step in reversed(made):
        parent[step] = layer_type(parent[step])
    return layer_type(root)


def list_or_dict(layer: dict[Any, Any]) -> list[Any] | dict[Any, Any]:
    """A list of what has indices, without gaps and in their order."""
    if any(isinstance(step, int) for step in layer):
        return [layer[index] for index in sorted(layer)]
    return layer
