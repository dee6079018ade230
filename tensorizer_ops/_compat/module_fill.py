"""Puts loaded tensors into the parameters and buffers of a module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from tensorizer_ops import errors
from tensorizer_ops._base.memory import as_bytes, identity, span
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._base.refill import refill, successor
from tensorizer_ops._compat.types import TensorType


class Incoming(NamedTuple):
    """A loaded tensor with its name in the file."""

    name: str
    kind: TensorType
    value: torch.nn.Parameter


class _Slot(NamedTuple):
    """A place for a tensor: a module's dict of parameters or of buffers, and a name in it."""

    tensors: dict[str, Any]
    attribute: str


def fill_module(module: torch.nn.Module, incoming: Sequence[Incoming]) -> None:
    """Put every tensor into its slot. All slots are found and checked before any is changed."""
    found = [_find(module, arrived) for arrived in incoming]
    _check_shapes(incoming, found)
    tied = _find_ties(module)
    filling: dict[object, list[tuple[_Slot, torch.nn.Parameter]]] = defaultdict(list)
    for arrived, (owner, attribute, slot) in zip(incoming, found, strict=True):
        old = None if slot is None else slot.tensors[attribute]
        if slot is None or old is None:
            _add(owner, attribute, arrived)
        else:
            filling[identity(old)].append((slot, arrived.value))
    taken: set[int] = set()
    for tie, fillings in filling.items():
        first = fillings[0][1]
        if all(_same(value, first) for _, value in fillings[1:]):
            _replace(tied[tie], _apart(first, taken))
        else:
            _untie(fillings)


def _find(module: torch.nn.Module, arrived: Incoming) -> tuple[torch.nn.Module, str, _Slot | None]:
    path, _, attribute = arrived.name.rpartition(".")
    owner = module
    # Step by step, because a module may contain itself and then has infinitely many paths.
    for step in path.split(".") if path else ():
        # `_modules` of a scripted module has no get().
        child = owner._modules[step] if step in owner._modules else None  # noqa: SIM401
        if child is None:
            raise KeyError(
                f"the module has no submodule {quoted(path)}, where {quoted(arrived.name)} belongs"
            )
        owner = child
    for kind, tensors in (
        (TensorType.PARAM, owner._parameters),
        (TensorType.BUFFER, owner._buffers),
    ):
        if attribute in tensors and arrived.kind in (kind, TensorType.STATE_DICT):
            return owner, attribute, _Slot(tensors, attribute)
    if hasattr(owner, attribute):
        raise KeyError(
            f"{quoted(arrived.name)} is {arrived.kind.name} in the file, and something else in "
            "the module"
        )
    return owner, attribute, None


def _check_shapes(
    incoming: Sequence[Incoming], found: Sequence[tuple[torch.nn.Module, str, _Slot | None]]
) -> None:
    different = []
    for arrived, (_, attribute, slot) in zip(incoming, found, strict=True):
        old = None if slot is None else slot.tensors[attribute]
        if old is None or is_lazy(old) or old.is_nested:
            continue
        if old.shape != arrived.value.shape:
            there, here = tuple(arrived.value.shape), tuple(old.shape)
            different.append(f"{quoted(arrived.name)} ({there} in the file, {here} in the module)")
    if different:
        raise errors.InvalidArgument(f"shapes differ: {', '.join(different)}")


def _find_ties(module: torch.nn.Module) -> dict[object, list[_Slot]]:
    ties: dict[object, list[_Slot]] = defaultdict(list)
    for owner in module.modules():
        for tensors in (owner._parameters, owner._buffers):
            for attribute, tensor in tensors.items():
                if tensor is not None:
                    ties[identity(tensor)].append(_Slot(tensors, attribute))
    return ties


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare two tensors bit by bit, so that equal NaNs are equal."""
    if one.dtype != other.dtype or one.is_meta:
        return one.dtype == other.dtype
    return torch.equal(as_bytes(one.detach()), as_bytes(other.detach()))


def _apart(value: torch.nn.Parameter, taken: set[int]) -> torch.nn.Parameter:
    """Return a value whose memory is not taken: a copy if the file ties what the module does not.

    Adds the memory to that which is taken.
    """
    where = span(value)
    if value.numel() and where is not None and where.begin in taken:
        value = torch.nn.Parameter(value.detach().clone(), value.requires_grad)
        where = span(value)
    if where is not None:
        taken.add(where.begin)
    return value


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
        if id(old) not in made:
            made[id(old)] = refill(old, value)
        if made[id(old)] is not old:
            tensors[attribute] = made[id(old)]


def _untie(fillings: Sequence[tuple[_Slot, torch.nn.Parameter]]) -> None:
    """Untie tensors that share memory in the module (placeholders do) but differ in the file.

    The first one of each object is refilled; the others get new objects.
    """
    taken: set[int] = set()
    for (tensors, attribute), value in fillings:
        old = tensors[attribute]
        tensors[attribute] = successor(old, value) if id(old) in taken else refill(old, value)
        taken.add(id(old))
