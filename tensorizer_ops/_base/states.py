"""The tensors that a program has, as they are compared with those of a file."""

from __future__ import annotations

import itertools
from collections.abc import Container, Hashable, Iterator, Mapping

import torch
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import kind_of
from tensorizer_ops._base.memory import identity, plain_parts, span
from tensorizer_ops._base.savable import as_dict, only_wraps

# The attributes in which modules keep what they have.
_PARTS = ("_parameters", "_buffers", "_modules")


def slots_of(
    module: torch.nn.Module,
    state: Mapping[str, torch.Tensor],
    stored: Container[str] | None = None,
) -> Iterator[tuple[str, torch.nn.Module, str, torch.Tensor]]:
    """Yield every tensor of a module: full name, owning module, name in that module, tensor.

    The names are those of its ``state_dict(keep_vars=True)``, in which some wrappers, such as those
    of activation checkpointing, leave theirs out. If ``stored`` is given, non-persistent buffers
    are included if they are in it, or if they are on the meta device and therefore must be filled
    from the file.
    """
    slots = [
        (f"{prefix}.{leaf}" if prefix else leaf, owner, leaf, tensor)
        for prefix, owner in module.named_modules(remove_duplicate=False)
        for leaf, tensor in (
            *owner.named_parameters(recurse=False, remove_duplicate=False),
            *owner.named_buffers(recurse=False, remove_duplicate=False),
        )
    ]
    own = {slot[0] for slot in slots}
    renamed: dict[int, list[str]] = {}
    for name, value in state.items():
        if name not in own:
            renamed.setdefault(id(value), []).append(name)
    for name, owner, leaf, tensor in slots:
        wanted = stored is not None and (name in stored or tensor.is_meta)
        if name not in state and (others := renamed.get(id(tensor))):
            yield others.pop(0), owner, leaf, tensor
        elif name in state or wanted:
            yield name, owner, leaf, tensor


def tensors_of(module: torch.nn.Module, stored: Container[str]) -> dict[str, torch.Tensor]:
    """Return the ``state_dict()`` of a module, with buffers it leaves out that a file has."""
    state: dict[str, torch.Tensor] = dict(module.state_dict(keep_vars=True))
    for name, _, _, tensor in list(slots_of(module, state, stored)):
        if name in stored:
            state.setdefault(name, tensor)
    return state


def state_of(model: torch.nn.Module, stored: Container[str]) -> dict[str, torch.Tensor]:
    """Return what :func:`tensors_of` does, if these are the tensors that the module has."""
    state = tensors_of(model, stored)
    for name in _hidden(model, state):
        raise errors.InvalidArgument(
            f"state_dict() of the module has another tensor {name!r} than the module: give a dict "
            "of the tensors to compare"
        )
    return state


def _hidden(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> Iterator[str]:
    """Yield the names of parameters and buffers for which a ``state_dict()`` has other tensors.

    So it does for those that a module has, but does not get by their names.
    """
    for prefix, module in model.named_modules():
        for name, value in itertools.chain(*(getattr(module, part).items() for part in _PARTS)):
            is_shadowed = name in vars(module) or hasattr(type(module), name)
            if is_shadowed and getattr(module, name) is not value:
                yield f"{prefix}.{name}".removeprefix(".")
    for found in (
        model.named_parameters(remove_duplicate=False),
        model.named_buffers(remove_duplicate=False),
    ):
        for name, tensor in found:
            other = state.get(name)
            if other is not None and identity(other) != identity(tensor):
                yield name


def made_anew(model: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Yield the names in a ``state_dict()`` of tensors with which no module computes.

    An extra state is none: modules make it of other things than tensors.
    """
    own = {
        where
        for found in (model.parameters(), model.buffers())
        for tensor in found
        for where in _memory(tensor)
    }
    for name, tensor in state.items():
        if not name.endswith(_EXTRA_STATE_KEY_SUFFIX) and not own.issuperset(_memory(tensor)):
            yield name


def _memory(tensor: torch.Tensor) -> Iterator[Hashable]:
    for part in plain_parts(tensor):
        where = span(part)
        if where is None:
            yield id(part)
        elif where.begin != where.end:
            yield where.storage


def trusted_state(
    given: torch.nn.Module | Mapping[str, torch.Tensor], stored: Container[str]
) -> dict[str, torch.Tensor]:
    """Return the tensors of a module, or of a dict, if these are all that a program computes with.

    Raises:
        ValueError: one may be more than its elements, or a module has others than it tells.
    """
    if isinstance(given, torch.nn.Module):
        state = state_of(given, stored)
        for name in made_anew(given, state):
            raise errors.InvalidArgument(
                f"state_dict() of the module makes tensor {name!r}, which no module has: give a "
                "dict of the tensors to compare"
            )
    else:
        state = as_dict(given)
    for name, tensor in state.items():
        if isinstance(tensor, torch.Tensor) and (why := why_more(tensor)):
            raise errors.InvalidArgument(f"tensor {name!r} cannot be verified: {why}")
    return state


def why_more(tensor: torch.Tensor) -> str | None:
    """Return why the elements of a tensor may not be what a program computes with."""
    if only_wraps(tensor):
        return None
    return f"it is {kind_of(tensor)}, which may change what its elements mean, such as by a scale"
