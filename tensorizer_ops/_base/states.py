"""The tensors that a program has, as they are compared with those of a file."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import kind_of
from tensorizer_ops._base.memory import identity
from tensorizer_ops._base.savable import only_wraps


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that a module has, by their names in files."""
    state: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
    for name in _hidden(model, state):
        raise errors.InvalidArgument(
            f"state_dict() of the module has another tensor {name!r} than the module: give a dict "
            "of the tensors to compare"
        )
    return state


def _hidden(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> Iterator[str]:
    """Yield the names of parameters and buffers for which a ``state_dict()`` has other tensors."""
    for found in (
        model.named_parameters(remove_duplicate=False),
        model.named_buffers(remove_duplicate=False),
    ):
        for name, tensor in found:
            other = state.get(name)
            if other is not None and identity(other) != identity(tensor):
                yield name


def why_more(tensor: torch.Tensor) -> str | None:
    """Return why a tensor is more than the one in it, which alone is compared; else ``None``."""
    if only_wraps(tensor):
        return None
    return (
        f"it is {kind_of(tensor)}, which may change what the tensor in it means, such as by a scale"
    )
