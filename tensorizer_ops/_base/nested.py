"""Nested states as named tensors and a text of JSON, and back.

In the text, a list is a list, and texts, finite numbers, true, false and null are themselves.
Anything else is an object with one key, which says what it is::

    {"dict": [[key, value], …]}    {"tensor": "its name in the file"}    {"tuple": […]}

``_PLAIN`` and ``_READ`` list all of them.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.memory import identity
from tensorizer_ops._base.quoting import quoted


class Damaged(ValueError):
    """Says what is wrong with a text."""


# The errors that a damaged text leads to.
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError)
METADATA_KEY = "tensorizer_ops.checkpoint"
# Python's own functions for JSON take about a thousand levels, and a dict has three of them.
_DEEPEST = 200
# Keys of one hash take a time that grows with the square of their number.
_MOST_COLLISIONS = 100
# Python neither writes nor reads longer integers in decimal.
_MOST_BITS = 14_000


def is_stateful(value: Any) -> bool:
    """Return whether a value of a state has a state of its own, as modules and optimizers."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def own_states(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a state with the states of modules and optimizers in it, as torch's ``save`` does."""
    return {k: v.state_dict() if is_stateful(v) else v for k, v in state.items()}


def flattened(state: Any, path: tuple[object, ...] = ()) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors of a state by name, and the text that says where they belong.

    ``path`` is where the state is in a larger one, for names and messages.
    """
    writer = _Writer()
    return writer.tensors, json.dumps(writer.node(state, path))


def rebuilt(text: str, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the state. Raises one of ``DAMAGE`` for a damaged text."""
    return _value(json.loads(text), tensors, 0)


@contextmanager
def naming_damage(label: str) -> Iterator[None]:
    """Raise ``errors.InvalidFormat`` for one of ``DAMAGE`` in the block."""
    try:
        yield
    except DAMAGE as error:
        raise errors.InvalidFormat(
            f"{label}: the nested state is damaged: {damage(error)}"
        ) from error


def damage(error: Exception) -> str:
    """Return what one of ``DAMAGE`` says about a text."""
    if isinstance(error, Damaged):
        return str(error)
    return "it is not JSON" if isinstance(error, json.JSONDecodeError) else "no save writes such"


# Values whose parts are values again, by type: what each is called, and what it is written as.
_PLAIN: dict[type, tuple[str, Callable[[Any], Any]]] = {
    dict: ("dict", lambda value: [list(pair) for pair in value.items()]),
    OrderedDict: ("ordered dict", lambda value: [list(pair) for pair in value.items()]),
    # Its function for missing keys is code, which a file must not hold.
    defaultdict: ("dict", lambda value: [list(pair) for pair in value.items()]),
    Counter: ("counter", lambda value: [list(pair) for pair in value.items()]),
    tuple: ("tuple", list),
    torch.Size: ("size", list),
    complex: ("complex", lambda value: [value.real, value.imag]),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode()),
    torch.dtype: ("dtype", lambda value: str(value).removeprefix("torch.")),
    torch.device: ("device", str),
}


def refuse_meta(tensor: torch.Tensor, *path: object) -> None:
    """Raise for a tensor without values, which is at a path in the state."""
    if tensor.is_meta:
        raise errors.InvalidArgument(
            f"state{_where(path)} is on the meta device, and has no values"
        )


def refuse_key(metadata: Mapping[str, str], key: str) -> None:
    """Raise if texts to store have the key under which a save stores the state."""
    if key in metadata:
        raise errors.InvalidArgument(f"the metadata has {key!r}, which holds the state")


def check_wanted(metadata: Mapping[str, str], wanted: Mapping[str, str] | None, shown: str) -> None:
    """Raise if what is loaded lacks metadata that it must have."""
    for key, text in (wanted or {}).items():
        if metadata.get(key) != text:
            raise errors.InvalidFormat(f"{shown} is not what was saved as {text!r}")


def refuse_collisions(keys: Sequence[Any]) -> None:
    """Raise for keys of a dict that are made to take long."""
    if len(keys) - len(set(map(hash, keys))) > _MOST_COLLISIONS:
        raise Damaged("it has a dict whose keys have the same hash")


def dtype_named(name: str) -> torch.dtype:
    """Return the type of elements; raise ``Damaged`` if torch has none of this name."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise Damaged(f"torch has no dtype {quoted(name)}")
    return found


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Damaged("it lacks a list")
    return value


def _pairs(value: Any) -> list[Any]:
    """Return the keys and values of a dict, unless the keys are made to take long."""
    pairs = _listed(value)
    if any(not isinstance(pair, list) or len(pair) != 2 for pair in pairs):
        raise Damaged("it has a dict with an entry that is not a key and a value")
    refuse_collisions([key for key, _ in pairs])
    return pairs


_READ: dict[str, Callable[[Any], Any]] = {
    "dict": lambda pairs: dict(_pairs(pairs)),
    "ordered dict": lambda pairs: OrderedDict(_pairs(pairs)),
    "counter": lambda pairs: Counter(dict(_pairs(pairs))),
    "tuple": lambda parts: tuple(_listed(parts)),
    "size": torch.Size,
    "complex": lambda parts: complex(*parts),
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "dtype": dtype_named,
    "device": torch.device,
    "float": float,
}


class _Writer:
    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[object, str] = {}

    def node(self, value: Any, path: tuple[object, ...]) -> Any:
        """Return the JSON of a value, which is at this path in the state."""
        if len(path) > _DEEPEST:
            raise ValueError(f"the state is nested more than {_DEEPEST} deep, or holds itself")
        kind = type(value)
        if any(f"{each.__module__}.{each.__name__}" == "numpy.generic" for each in kind.__mro__):
            value = value.item()
            kind = type(value)
        if kind is int and value.bit_length() > _MOST_BITS:
            raise ValueError(f"state{_where(path)} is an integer of {value.bit_length()} bits")
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, torch.Tensor):
            refuse_meta(value, *path)
            return {"tensor": self._name_of(value, path)}
        if kind is list:
            return [self.node(each, (*path, place)) for place, each in enumerate(value)]
        if kind not in _PLAIN:
            advice = "save what it is made of"
            if hasattr(value, "__array_interface__"):
                advice = "give torch.as_tensor() of it"
            elif isinstance(value, torch.nn.Module):
                advice = "give its state_dict()"
            raise TypeError(
                f"state{_where(path)} is {kind.__module__}.{kind.__qualname__}, which only pickle "
                f"could save: {advice}"
            )
        name, write = _PLAIN[kind]
        written = write(value)
        if name in ("dict", "ordered dict"):
            return {name: [self._pair(key, each, path) for key, each in written]}
        return {name: self.node(written, path)}

    def _pair(self, key: Any, value: Any, path: tuple[object, ...]) -> list[Any]:
        inside = (*path, key)
        return [self.node(key, inside), self.node(value, inside)]

    def _name_of(self, tensor: torch.Tensor, path: tuple[object, ...]) -> str:
        """Return the name of a tensor in the file. One that is in the state twice has one name."""
        tied = identity(tensor)
        if tied in self._names:
            return self._names[tied]
        plain = ".".join(map(str, path)) or "tensor"
        name = plain
        for count in range(2, len(self.tensors) + 3):
            if name not in self.tensors:
                break
            name = f"{plain} ({count})"
        self.tensors[name] = tensor
        self._names[tied] = name
        return name


def _where(path: tuple[object, ...]) -> str:
    return "".join(f"[{quoted(key)}]" for key in path)


def _value(node: Any, tensors: Mapping[str, torch.Tensor], depth: int) -> Any:
    if depth > 3 * _DEEPEST + 3:
        raise Damaged("it is nested too deep")
    if isinstance(node, list):
        return [_value(each, tensors, depth + 1) for each in node]
    if not isinstance(node, dict):
        return node
    if len(node) != 1:
        raise Damaged(f"it has an object with {len(node)} keys in place of one")
    ((kind, content),) = node.items()
    if kind == "tensor":
        if content not in tensors:
            raise Damaged(f"it refers to tensor {quoted(content)}, which the file does not have")
        return tensors[content]
    if kind not in _READ:
        raise Damaged(f"it has a value of the unknown kind {quoted(kind)}")
    return _READ[kind](_value(content, tensors, depth + 1))
