"""What torch's operations write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._pytree import tree_leaves

from tensorizer_ops._base.savable import is_dispatched
from tensorizer_ops._front.weight import Weight

# Subclasses that do not divide an operation into others on plain tensors, which a mode sees.
_NOT_DIVIDED = (Weight, FakeTensor, FunctionalTensor)
# Arguments that normalizations change, which their schemas do not tell.
_STATISTICS = ("running_mean", "running_var")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in an argument or a result."""
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def is_divided(tensor: torch.Tensor) -> bool:
    """Return whether the class of a tensor decides what an operation does with the elements."""
    return is_dispatched(tensor) and not isinstance(tensor, _NOT_DIVIDED)


def outputs_of(func: Any) -> set[str]:
    """Return the names of the arguments whose elements an operation replaces, and does not read."""
    return {each.name for each in func._schema.arguments if each.is_out}


def written_by(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[torch.Tensor]:
    """Yield the tensors among the arguments that an operation changes."""
    declared = func._schema.arguments
    names = [argument.name for argument in declared]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    undeclared = _STATISTICS if _updates_statistics(func, given) else ()
    for argument in declared:
        is_declared = argument.alias_info is not None and argument.alias_info.is_write
        if is_declared or argument.name in undeclared:
            yield from tensors_in(given.get(argument.name))


def _updates_statistics(func: Any, given: Mapping[str, Any]) -> bool:
    """Return whether an operation changes the statistics that it gets, which no schema tells."""
    name = func._schema.name
    return (
        name.startswith("aten::")
        and ("batch_norm" in name or "instance_norm" in name)
        and not name.endswith(("_backward", "_functional", "_no_update", "_no_training"))
        and bool(given.get("training", given.get("use_input_stats", True)))
    )
