"""The tensors that modules have as plain attributes, which a loader may fill."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping
from typing import NamedTuple

import torch

from tensorizer_ops._attest.compared import Attestation, difference
from tensorizer_ops._attest.watched import Owners
from tensorizer_ops._base.memory import Span, copyable, has_memory, identity, is_plain, span
from tensorizer_ops._base.states import attributes_of

OTHER_MEMORY = "the loader gives it other memory"


class _Attribute(NamedTuple):
    name: str
    tensor: torch.Tensor
    span: Span
    before: list[torch.Tensor]  # what it had, if it is written


class Attributes:
    """Lets attributes be written, because loaders work with some, and puts back what they had."""

    def __init__(self, model: torch.nn.Module, compared: Container[str]) -> None:
        with torch._C.DisableTorchFunctionSubclass():  # for the memory itself
            self._kept = {
                name: (tensor, tensor.data)
                for name, tensor in attributes_of(model, ()).items()
                if name not in compared and is_plain(tensor) and has_memory(tensor)
            }
        bare = ((name, _bare(data)) for name, (_, data) in self._kept.items())
        self._owners = Owners(
            [_Attribute(name, each, where, []) for name, each in bare if (where := span(each))]
        )

    def keep(self, written: Iterable[torch.Tensor]) -> None:
        """Keep what attributes have, before they are written."""
        for tensor in written:
            for own in self._owners.of(tensor):
                if not own.before:
                    own.before.append(own.tensor.clone())

    def restore(self, found: Attestation) -> None:
        """Give attributes what they had, and list what the loader has left there."""
        put_back(self._kept, found)
        for name, tensor, where, before in self._owners.every:
            is_moved = span(tensor) != where
            if is_moved:
                found.not_compared[name] = OTHER_MEMORY
            if not (before and has_memory(tensor)):
                continue
            if differs := difference(before[0], tensor):
                with torch.inference_mode():  # some may have been made in it
                    tensor.copy_(before[0])
                if not is_moved:
                    other = "what the loader makes of the file"
                    found.different[name] = differs.text(tensor.shape, other)


def put_back(kept: Mapping[str, tuple[torch.Tensor, torch.Tensor]], found: Attestation) -> None:
    """Give tensors their memory again, which is kept behind each, and list those that had other."""
    with torch._C.DisableTorchFunctionSubclass():
        for name, (tensor, data) in kept.items():
            if _layout(tensor) != _layout(data):
                found.not_compared[name] = OTHER_MEMORY
                try:
                    tensor.data = data
                except (RuntimeError, ValueError):  # it was exchanged for one that cannot have it
                    found.not_compared[name] = "the loader makes a tensor of another kind of it"


def _layout(tensor: torch.Tensor) -> Hashable:
    """Return a key that changes when a tensor gets other memory, or another view of it."""
    where = span(tensor)
    if where is None:
        return None if tensor.is_nested else tensor.shape, tensor.dtype, tensor.device
    return identity(tensor) if where.begin != where.end else (where, tensor.shape, tensor.dtype)


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements that a tensor has in memory, each once, as torch can copy them."""
    tensor = tensor.conj() if tensor.is_conj() else tensor
    tensor = torch._neg_view(tensor) if tensor.is_neg() else tensor
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return copyable(tensor)
