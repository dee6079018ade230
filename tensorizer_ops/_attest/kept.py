"""The tensors that a module has, which a method of it may replace by others."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

import torch

from tensorizer_ops._attest.compared import Attestation, difference
from tensorizer_ops._base.memory import is_plain

# The attributes in which modules keep what they have, and the kind of it.
_PARTS = {"_parameters": "tensor", "_buffers": "tensor", "_modules": "module"}


class Kept:
    """Puts what its block replaces in modules back, and says which names these are."""

    def __init__(self, model: torch.nn.Module, found: Attestation) -> None:
        self._model, self._found = model, found
        self._modules = [
            (
                prefix,
                module,
                {part: dict(getattr(module, part)) for part in _PARTS},
                set(module._non_persistent_buffers_set),
            )
            for prefix, module in model.named_modules()
        ]
        # Where modules have tensors besides, such as an LSTM those that it computes with.
        self._others = [
            (module, name, value, list(value) if isinstance(value, list) else None)
            for _, module, *_ in self._modules
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor) or _has_tensors(value)
        ]

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        for prefix, module, parts, non_persistent in self._modules:
            if module._non_persistent_buffers_set != non_persistent:
                module._non_persistent_buffers_set = non_persistent
            for part, before in parts.items():
                now = getattr(module, part)
                if not _is_same(now, before):
                    for name in sorted(now.keys() | before.keys()):
                        one, other = now.get(name), before.get(name)
                        is_cache = part == "_buffers" and name in non_persistent
                        if one is not other and not (is_cache and _has_same_values(one, other)):
                            self._tell(f"{prefix}.{name}".removeprefix("."), _PARTS[part])
                    now.clear()
                    now.update(before)
        for module, name, value, elements in self._others:
            if elements is not None:
                value[:] = elements
            if vars(module).get(name) is not value:
                vars(module)[name] = value

    def _tell(self, name: str, kind: str) -> None:
        if name in self._found.compared:
            self._found.compared.remove(name)
        self._found.not_compared[name] = f"the loader puts another {kind} in its place"


def _has_tensors(value: object) -> bool:
    return isinstance(value, list) and any(
        isinstance(each, torch.Tensor | weakref.ref) for each in value
    )


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
