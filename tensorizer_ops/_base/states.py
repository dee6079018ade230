"""The tensors that a program has, as they are compared with those of a file."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import kind_of
from tensorizer_ops._base.coverage import Layout, uncovered
from tensorizer_ops._base.memory import identity, plain_parts, span
from tensorizer_ops._base.ranges import Ranges
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
    slots = list(_registered_in(module))
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


def tensors_of(module: torch.nn.Module, stored: Collection[str]) -> dict[str, torch.Tensor]:
    """Return the ``state_dict()`` of a module, with what it leaves out of that a file has.

    These are buffers, and tensors that are plain attributes, as those of ``weight_norm`` are.
    """
    state: dict[str, torch.Tensor] = dict(module.state_dict(keep_vars=True))
    left_out = ((name, tensor) for name, _, _, tensor in list(slots_of(module, state, stored)))
    for name, tensor in itertools.chain(left_out, attributes_of(module, stored).items()):
        if name in stored:
            state.setdefault(name, tensor)
    return state


def full_name(prefix: str, leaf: str) -> str:
    """Return the name of what a module has, whose own name is ``prefix``."""
    return f"{prefix}.{leaf}".removeprefix(".")


def registered_in(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a module by name, the tied ones by each."""
    return {name: tensor for name, _, _, tensor in _registered_in(module)}


def _registered_in(
    module: torch.nn.Module,
) -> Iterator[tuple[str, torch.nn.Module, str, torch.Tensor]]:
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for leaf, tensor in (
            *owner.named_parameters(recurse=False, remove_duplicate=False),
            *owner.named_buffers(recurse=False, remove_duplicate=False),
        ):
            yield full_name(prefix, leaf), owner, leaf, tensor


def attributes_of(module: torch.nn.Module, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Return the tensors that modules have as plain attributes, also of their classes.

    TorchScript does not tell which attributes its modules have: of these, those of ``names``.
    """
    return {name: tensor for name, _, _, tensor in _attributes_in(module, names)}


def _attributes_in(
    module: torch.nn.Module, names: Iterable[str]
) -> Iterator[tuple[str, torch.nn.Module, str, torch.Tensor]]:
    leaves: dict[str, list[str]] = defaultdict(list)
    for name in names:
        leaves[name.rpartition(".")[0]].append(name.rpartition(".")[2])
    for prefix, owner in module.named_modules(remove_duplicate=False):
        attributes: dict[str, Any] = {}
        for place in (*reversed(type(owner).__mro__), owner):
            attributes |= vars(place) if place is not torch.nn.Module else {}
        if isinstance(owner, torch.jit.ScriptModule):
            code = owner._c  # beside which Python has attributes of the same names
            attributes |= {
                leaf: code.getattr(leaf) for leaf in leaves[prefix] if code.hasattr(leaf)
            }
        for leaf, value in attributes.items():
            if isinstance(value, torch.Tensor):
                yield full_name(prefix, leaf), owner, leaf, value


def _own_tensors(module: torch.nn.Module, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of a module by the names by which it gets them."""
    return registered_in(module) | attributes_of(module, names)


def state_of(model: torch.nn.Module, stored: Collection[str]) -> dict[str, torch.Tensor]:
    """Return what :func:`tensors_of` does, if these are the tensors that the module has."""
    state = tensors_of(model, stored)
    for name in _hidden(model, state):
        raise errors.InvalidArgument(
            f"state_dict() of the module has another tensor {name!r} than the module: give a dict "
            "of the tensors to compare"
        )
    return state


def _hidden(model: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Yield the names for which a ``state_dict()`` has other tensors than the module.

    So it does for those that a module has, but does not get by their names.
    """
    parts = (
        (full_name(prefix, leaf), module, leaf, value)
        for prefix, module in model.named_modules()
        for part in _PARTS
        for leaf, value in getattr(module, part).items()
    )
    for name, module, leaf, value in itertools.chain(parts, _attributes_in(model, ())):
        # TorchScript does not ask Python.
        if (
            not isinstance(module, torch.jit.ScriptModule)
            and getattr(module, leaf, None) is not value
        ):
            yield name
    # Two of one name are possible: attributes may have a dot in theirs.
    every = itertools.chain(_registered_in(model), _attributes_in(model, state))
    for name, _, _, tensor in every:
        other = state.get(name)
        if isinstance(other, torch.Tensor) and not _is_same(other, tensor):
            yield name


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or identity(one) == identity(other)


def doubts(
    given: torch.nn.Module | Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]
) -> dict[str, str]:
    """Return why tensors may not be what a program computes with, by name.

    All that counts as compared with a file passes here. The tensors of a module are asked
    themselves, because its ``state_dict()`` may show plain elements of a subclass, or parts.

    Args:
        given: a module, or what ``state`` has.
        state: the tensors to compare; of a module, those of :func:`tensors_of`.
    """
    own = _own_tensors(given, state) if isinstance(given, torch.nn.Module) else state
    found: dict[str, str] = {}
    others: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        mine = own.get(name)
        if why := why_more(tensor):
            found[name] = why
        elif mine is None or not _is_same(mine, tensor):
            others[name] = tensor
        elif why := why_more(mine):
            found[name] = why
    if others and isinstance(given, torch.nn.Module):
        found |= _doubts_of_others(given, state, others)
    return found


def _doubts_of_others(
    module: torch.nn.Module, state: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, str]]:
    """Yield what :func:`doubts` returns of tensors that have no names in the module.

    They may be other names or parts of its parameters and buffers, if a ``state_dict()`` has all
    elements of these. An extra state is none: modules make it of other things than tensors.
    """
    shown = _Parts((name, each) for name, each in state.items() if isinstance(each, torch.Tensor))
    own = _Parts(registered_in(module).items())
    for name, tensor in others.items():
        if name.rpartition(".")[2] == _EXTRA_STATE_KEY_SUFFIX:
            continue
        for part in plain_parts(tensor):
            if not own.cover(part):
                yield name, "the state_dict() of the module makes it, and no module has this tensor"
            for each in own.near(part):
                if why := why_more(each.whole):
                    yield name, why
                elif not shown.cover(each.tensor):
                    yield name, f"the state_dict() of the module has only a part of {each.name!r}"


class _Part(NamedTuple):
    name: str
    whole: torch.Tensor  # which has the name
    tensor: torch.Tensor  # a plain one that it consists of


class _Parts:
    """The plain tensors that tensors consist of, by the memory that they have."""

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._same: dict[Hashable, list[_Part]] = defaultdict(list)
        self._ranges: dict[torch.device, Ranges[_Part]] = defaultdict(Ranges)
        for name, whole in tensors:
            for tensor in plain_parts(whole):
                part = _Part(name, whole, tensor)
                self._same[identity(tensor)].append(part)
                if where := span(tensor):
                    self._ranges[tensor.device].add(where.begin, where.end, part)

    def cover(self, tensor: torch.Tensor) -> bool:
        """Return whether these have all elements of a plain tensor."""
        if identity(tensor) in self._same:
            return True
        where = span(tensor)
        if where is None or where.begin == where.end:
            return where is not None
        near = self._ranges[tensor.device].near(where.begin, where.end)
        return not uncovered(Layout.of(tensor), {Layout.of(part.tensor) for part in near})

    def near(self, tensor: torch.Tensor) -> list[_Part]:
        """Return those that are a plain tensor, or else those that have some of its memory."""
        same, where = self._same.get(identity(tensor)), span(tensor)
        if same or where is None:
            return same or []
        return self._ranges[tensor.device].near(where.begin, where.end)


def trusted_state(
    given: torch.nn.Module | Mapping[str, torch.Tensor], stored: Collection[str]
) -> dict[str, torch.Tensor]:
    """Return the tensors of a module, or of a dict, if these are all that a program computes with.

    Raises:
        ValueError: one may be more than its elements, or a module has others than it tells.
    """
    state = state_of(given, stored) if isinstance(given, torch.nn.Module) else as_dict(given)
    for name, why in doubts(given, state).items():
        raise errors.InvalidArgument(f"tensor {name!r} cannot be verified: {why}")
    return state


def why_more(tensor: torch.Tensor) -> str | None:
    """Return why the elements of a tensor may not be what a program computes with."""
    if only_wraps(tensor):
        return None
    return f"it is {kind_of(tensor)}, which may change what its elements mean, such as by a scale"
