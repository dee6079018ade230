"""The tensors that a module has, which a method of it may replace by others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from tensorizer_ops._attest.compared import Attestation, difference
from tensorizer_ops._base.memory import is_plain

# The attributes in which modules keep what they have, and the kind of it.
_PARTS = {"_parameters": "tensor", "_buffers": "tensor", "_modules": "module"}


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
        for prefix, module, parts, non_persistent in self._modules:
            for part, before in parts.items():
                now: dict[str, object] = getattr(module, part)
                if not _is_same(now, before):
                    for name in sorted(now.keys() | before.keys()):
                        one, other = now.get(name), before.get(name)
                        is_cache = part == "_buffers" and name in non_persistent
                        if one is not other and not (is_cache and _has_same_values(one, other)):
                            self._tell(prefix, name, _PARTS[part])
        for prefix, module, attributes in self._attributes:
            if not _is_same(vars(module), attributes):
                for name in attributes.keys() | vars(module).keys():
                    one, other = attributes.get(name), vars(module).get(name)
                    is_tensor = isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor)
                    if is_tensor and one is not other and not _has_same_values(one, other):
                        self._tell(prefix, name, "tensor")
                vars(module).clear()
                vars(module).update(attributes)
        for container, elements in self._containers:
            if _identities(container) != _identities(elements):
                container.clear()
                if isinstance(container, list):
                    container.extend(elements)
                else:
                    container.update(elements)

    def _tell(self, prefix: str, leaf: str, kind: str) -> None:
        name = f"{prefix}.{leaf}".removeprefix(".")
        if name in self._found.compared:
            self._found.compared.remove(name)
        self._found.not_compared[name] = f"the loader puts another {kind} in its place"


def _identities(container: list[Any] | dict[Any, Any] | set[Any]) -> list[int]:
    values = container.values() if isinstance(container, dict) else ()
    return [id(each) for each in (*container, *values)]


def _has_same_values(now: object, before: object) -> bool:
    return (
        isinstance(now, torch.Tensor)
        and isinstance(before, torch.Tensor)
        and (is_plain(now) and is_plain(before))
        and (now.shape, now.dtype, now.device) == (before.shape, before.dtype, before.device)
        and difference(now, before) is None
    )


def _is_same(now: Mapping[str, object], before: Mapping[str, object]) -> bool:
    return now.keys() == before.keys() and all(now[name] is before[name] for name in now)
