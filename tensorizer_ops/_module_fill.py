"""Puts loaded tensors into the places of a module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from tensorizer_ops import errors
from tensorizer_ops._types import TensorType


class Incoming(NamedTuple):
    """A loaded tensor, under the name that the file has for it."""

    name: str
    kind: TensorType
    value: torch.nn.Parameter


class _Slot(NamedTuple):
    """Where a module keeps a tensor: its parameters or its buffers, and the name in there."""

    tensors: dict[str, Any]
    attribute: str


def fill_module(module: torch.nn.Module, incoming: Sequence[Incoming]) -> None:
    """Put every tensor into its place; all places are found and checked before any is touched."""
    owners = dict(module.named_modules(remove_duplicate=False))
    found = [_find(owners, arrived) for arrived in incoming]
    _check_shapes(incoming, found)
    tied = _find_ties(owners.values())
    filled: set[object] = set()
    for arrived, (owner, attribute, slot) in zip(incoming, found, strict=True):
        old = None if slot is None else slot.tensors[attribute]
        if old is None:
            _add(owner, attribute, arrived)
        elif (tie := _tie(old)) not in filled:
            filled.add(tie)
            _replace(tied[tie], arrived.value)


def _find(
    owners: dict[str, torch.nn.Module], arrived: Incoming
) -> tuple[torch.nn.Module, str, _Slot | None]:
    path, _, attribute = arrived.name.rpartition(".")
    owner = owners.get(path)
    if owner is None:
        raise KeyError(f"the module has no {path!r}, where {arrived.name!r} belongs")
    for kind, tensors in (
        (TensorType.PARAM, owner._parameters),
        (TensorType.BUFFER, owner._buffers),
    ):
        if attribute in tensors and arrived.kind in (kind, TensorType.STATE_DICT):
            return owner, attribute, _Slot(tensors, attribute)
    if hasattr(owner, attribute):
        raise KeyError(
            f"{arrived.name!r} is {arrived.kind.name} in the file, and something else in the module"
        )
    return owner, attribute, None


def _check_shapes(
    incoming: Sequence[Incoming], found: Sequence[tuple[torch.nn.Module, str, _Slot | None]]
) -> None:
    different = []
    for arrived, (_, attribute, slot) in zip(incoming, found, strict=True):
        old = None if slot is None else slot.tensors[attribute]
        if old is None or is_lazy(old):
            continue
        if old.shape != arrived.value.shape:
            there, here = tuple(arrived.value.shape), tuple(old.shape)
            different.append(f"{arrived.name!r} ({there} in the file, {here} in the module)")
    if different:
        raise errors._new(errors.InvalidArgument, f"shapes differ: {', '.join(different)}")


def _tie(tensor: torch.Tensor) -> object:
    """The same for tensors that are all of the same memory."""
    if tensor.is_meta or is_lazy(tensor) or tensor.numel() == 0:
        return id(tensor)
    return tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride()


def _find_ties(owners: Iterable[torch.nn.Module]) -> dict[object, list[_Slot]]:
    ties: dict[object, list[_Slot]] = defaultdict(list)
    for owner in owners:
        for tensors in (owner._parameters, owner._buffers):
            for attribute, tensor in tensors.items():
                if tensor is not None:
                    ties[_tie(tensor)].append(_Slot(tensors, attribute))
    return ties


def _add(owner: torch.nn.Module, attribute: str, arrived: Incoming) -> None:
    is_buffer = attribute in owner._buffers or arrived.kind == TensorType.BUFFER
    if arrived.kind == TensorType.STATE_DICT and attribute not in owner._parameters:
        is_buffer = is_buffer or not arrived.value.requires_grad
    if is_buffer:
        persistent = attribute not in owner._non_persistent_buffers_set
        owner.register_buffer(attribute, arrived.value.data, persistent)
    else:
        owner.register_parameter(attribute, arrived.value)


def _replace(slots: Sequence[_Slot], value: torch.nn.Parameter) -> None:
    made: dict[int, torch.Tensor] = {}
    for tensors, attribute in slots:
        old = tensors[attribute]
        if id(old) in made:
            tensors[attribute] = made[id(old)]
        elif old.is_meta or is_lazy(old):
            made[id(old)] = tensors[attribute] = _successor(old, value)
        else:
            if old.requires_grad and not value.requires_grad:
                old.requires_grad_(False)
            old.data = value.data


def _successor(old: torch.Tensor, value: torch.nn.Parameter) -> torch.Tensor:
    """What stands in for a tensor without memory: of its class, with its attributes and hooks."""
    if not isinstance(old, torch.nn.Parameter):
        return value.data
    kind = getattr(old, "cls_to_become", type(old))
    requires_grad = old.requires_grad and value.requires_grad
    new: torch.Tensor = torch.Tensor._make_subclass(kind, value.data, requires_grad)
    new.__dict__.update(old.__dict__)
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if getattr(old, hooks, None):
            setattr(new, hooks, getattr(old, hooks))
    return new
