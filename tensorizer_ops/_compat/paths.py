"""Paths into nested dicts and lists: files store nested tensors under such paths."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

Path = tuple[str | int, ...]

# The prefix of a stored name that is a path and not a plain name (docs/format.md).
_NESTED_MARK = "\x1e"

Leaf = TypeVar("Leaf")


def is_nested(stored: str) -> bool:
    return stored.startswith(_NESTED_MARK)


def parse(stored: str) -> Path:
    """Return the path of a stored name, which the library has already validated."""
    if is_nested(stored):
        return tuple(json.loads(stored[1:]))
    return (stored,)


def stored_name(path: Path) -> str:
    if len(path) == 1 and isinstance(path[0], str):
        return path[0]
    return _NESTED_MARK + json.dumps(path, separators=(",", ":"))


def public(stored: str) -> str | Path:
    """Return the name as callers see it: a plain name, or the path of a nested tensor."""
    return parse(stored) if is_nested(stored) else stored


def flatten(structure: Mapping[str, Any] | Sequence[Any]) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yield every tensor of nested dicts and lists with its path, in order, without recursion."""
    layers = [(structure, _children((), structure))]
    inside = {id(structure)}
    while layers:
        layer, children = layers[-1]
        for path, value in children:
            if isinstance(value, torch.Tensor):
                yield path, value
                continue
            if id(value) in inside:
                raise ValueError(f"the structure contains itself, at {path}")
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
    # A string is a sequence of strings, so descending into it would never end.
    if isinstance(layer, Sequence) and not isinstance(layer, str | bytes | bytearray | memoryview):
        return (((*path, index), value) for index, value in enumerate(layer))
    raise TypeError(f"the value at {path} is {type(layer).__name__}, and must be a tensor")


def tree(leaves: Mapping[Path, Leaf], layer_type: Callable[[dict[Any, Any]], Any]) -> Any:
    """Build the nested layers of the paths; ``layer_type`` converts the dict of each layer.

    Returns the leaf itself if its path is empty.
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
    # In reverse, because parents are created before their children. No recursion, because the
    # depth of a file is not limited.
    for parent, step in reversed(made):
        parent[step] = layer_type(parent[step])
    return layer_type(root)


def list_or_dict(layer: dict[Any, Any]) -> list[Any] | dict[Any, Any]:
    """Convert a layer with integer keys to a list in their order; leave out missing indices."""
    if any(isinstance(step, int) for step in layer):
        return [layer[index] for index in sorted(layer)]
    return layer
