"""Where values are in a nested state.

Torch's planners make a path of every value: texts are keys of dicts, integers places in lists. They
make texts of other keys, and leave out empty dicts. The paths here have both: ``("7",)`` is the key
7 of a dict, and a save stores the paths of empty dicts as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tensorizer_ops._base.nested import Damaged, refuse_collisions
from tensorizer_ops._base.quoting import quoted

Path = tuple[Any, ...]
# Torch's planners look into lists that have these, and take others as one value.
_HOLDS_MORE = (Mapping, list, torch.Tensor)


def own_key(container: Any, key: str | int) -> Any:
    """Return the key of a dict of which torch has made a text, or the place in a list."""
    if not isinstance(container, Mapping) or key in container or not isinstance(key, str):
        return key
    if key.removeprefix("-").isdecimal() and int(key) in container:
        return int(key)
    return next((own for own in container if str(own) == key), key)


def saved_paths(state: Mapping[str, Any], mappings: Mapping[str, Path]) -> dict[str, Path]:
    """Return the paths to store, by name, for those that torch has made."""
    found: dict[str, Path] = {}
    for path, value in _walk(state):
        if mappings.get(_name(path)) == _plain(path) or _is_empty(value):
            found.setdefault(_name(path), path)
    return found


def empty_dicts(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names that values in empty dicts would begin with."""
    return (_name(path) for path, value in _walk(state) if _is_empty(value))


def nested(values: Mapping[str, Any], paths: Mapping[str, Path]) -> dict[Any, Any]:
    """Return the state with these values; raise one of ``DAMAGE`` if no save stores such paths."""
    state = _Part()
    for name, path in ({name: (name,) for name in values} | dict(paths)).items():
        if _name(path) != name:
            raise Damaged(f"it has a path that does not lead to {quoted(name)}")
        _put(state, path, values[name] if name in values else _Part(), len(values))
    done: dict[Any, Any] = _complete(state)
    return done


def _walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield what is in a state, containers too, with its path."""
    if path:
        yield path, value
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _walk(each, (*path, (str(key),) if type(key) is int else str(key)))
    elif isinstance(value, list) and any(isinstance(each, _HOLDS_MORE) for each in value):
        for place, each in enumerate(value):
            yield from _walk(each, (*path, place))


def _is_empty(value: Any) -> bool:
    return isinstance(value, Mapping) and not value


def _plain(path: Path) -> Path:
    return tuple(key[0] if type(key) is tuple else key for key in path)


def _name(path: Path) -> str:
    return ".".join(map(str, _plain(path)))


class _Part(dict[Any, Any]):
    """A dict or a list of a state, by the keys in paths, before it is complete."""


def _put(state: _Part, path: Path, value: Any, most: int) -> None:
    for key in path:
        is_place = type(key) is int and 0 <= key < most  # in a list, which has no gaps
        is_number = type(key) is tuple and len(key) == 1 and type(key[0]) is str
        if not (is_place or is_number or type(key) is str):
            raise Damaged(f"it has a path with {quoted(key)}")
    *parents, last = path
    inside = state
    for key in parents:
        inside = inside.setdefault(key, _Part())
        if type(inside) is not _Part:
            raise Damaged("it has a value in another value")
    if last in inside:
        raise Damaged("it has two values in one place")
    inside[last] = value


def _complete(value: Any) -> Any:
    if type(value) is not _Part:
        return value
    places = [key for key in value if type(key) is int]
    if places:
        if sorted(value) != list(range(len(value))):
            raise Damaged("it has a list with gaps")
        return [_complete(value[place]) for place in range(len(value))]
    pairs = [(int(key[0]) if type(key) is tuple else key, value[key]) for key in value]
    refuse_collisions([key for key, _ in pairs])
    return {key: _complete(each) for key, each in pairs}
