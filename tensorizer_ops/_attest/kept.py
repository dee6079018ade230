"""The tensors that a module has, which a method of it may replace by others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from tensorizer_ops._attest.compared import Attestation, difference
from tensorizer_ops._base.memory import copyable, has_memory
from tensorizer_ops._base.states import full_name

# The attributes in which modules keep what they have, and the kind of it.
_PARTS = {"_parameters": "tensor", "_buffers": "tensor", "_modules": "module"}
# In place of what a name does not have.
_NONE = object()


class _Change(NamedTuple):
    name: str
    kind: str
    now: object
    before: object
    may_be_equal: bool  # as what is computed, and not loaded


class Kept:
    """Leaves modules as they were before its block, and says which tensors that replaces."""

    def __init__(self, model: torch.nn.Module, found: Attestation) -> None:
        self._found = found
        self._modules = [
            (
                prefix,
                module,
                {part: dict(getattr(module, part)) for part in _PARTS},
                set(module._non_persistent_buffers_set),
            )
            for prefix, module in model.named_modules()
        ]
        self._attributes = [
            (prefix, module, dict(vars(module))) for prefix, module, *_ in self._modules
        ]
        # An LSTM has its parameters in a list, too, and computes with these.
        self._containers = [
            (value, value.copy())
            for *_, attributes in self._attributes
            for value in attributes.values()
            if type(value) in (list, dict, OrderedDict, set)
        ]

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        changes = list(self._changes())
        self._put_back()  # before tensors are compared, which may fail
        for change in changes:
            if not (change.may_be_equal and _has_same_values(change.now, change.before)):
                self._tell(change)

    def _changes(self) -> Iterator[_Change]:
        for prefix, module, parts, non_persistent in self._modules:
            for part, kind in _PARTS.items():
                for leaf, now, before in _replaced(getattr(module, part), parts[part]):
                    is_cache = part == "_buffers" and leaf in non_persistent
                    yield _Change(full_name(prefix, leaf), kind, now, before, is_cache)
        for prefix, module, attributes in self._attributes:
            for leaf, now, before in _replaced(vars(module), attributes):
                if isinstance(now, torch.Tensor) or isinstance(before, torch.Tensor):
                    yield _Change(full_name(prefix, leaf), "tensor", now, before, may_be_equal=True)

    def _put_back(self) -> None:
        for _, module, attributes in self._attributes:
            if any(_replaced(vars(module), attributes)):
                vars(module).clear()
                vars(module).update(attributes)
        for container, elements in self._containers:
            if _identities(container) != _identities(elements):
                container.clear()
                if isinstance(container, list):
                    container.extend(elements)
                else:
                    container.update(elements)

    def _tell(self, change: _Change) -> None:
        if change.name in self._found.compared:
            self._found.compared.remove(change.name)
        why = f"the loader puts another {change.kind} in its place"
        self._found.not_compared[change.name] = why


def _identities(container: list[Any] | dict[Any, Any] | set[Any]) -> list[int]:
    values = container.values() if isinstance(container, dict) else ()
    return [id(each) for each in (*container, *values)]


def _has_same_values(now: object, before: object) -> bool:
    return (
        isinstance(now, torch.Tensor)
        and isinstance(before, torch.Tensor)
        and (has_memory(now) and has_memory(before))
        and (now.shape, now.dtype, now.device) == (before.shape, before.dtype, before.device)
        and difference(copyable(now), copyable(before)) is None
    )


def _replaced(
    now: Mapping[str, object], before: Mapping[str, object]
) -> Iterator[tuple[str, object, object]]:
    """Yield the names with another value than before, that value and the one before."""
    for name in {**before, **now}:
        if now.get(name, _NONE) is not before.get(name, _NONE):
            yield name, now.get(name), before.get(name)
