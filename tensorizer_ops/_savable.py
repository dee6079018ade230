"""Checks what is to be saved, and says what to do with what cannot be.

Torch's own errors would print all of the tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from tensorizer_ops import errors
from tensorizer_ops._arguments import is_unicode, kind_of, not_unicode, wrong


def as_dict(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if isinstance(tensors, torch.nn.Module):
        raise wrong("tensors", tensors, "a dict of tensors: give its state_dict()")
    if not isinstance(tensors, Mapping):
        raise wrong("tensors", tensors, "a dict of tensors, such as a state_dict()")
    return dict(tensors)


def refuse_other_metadata(metadata: Mapping[str, str] | None) -> None:
    """Raise for metadata that is not text."""
    for key, value in (metadata or {}).items():
        if not isinstance(key, str):
            raise TypeError(f"metadata has a key that is {kind_of(key)}, and must be str")
        if not isinstance(value, str):
            raise TypeError(f"metadata[{key!r}] is {kind_of(value)}, and must be str")
        if not is_unicode(key + value):
            raise not_unicode(f"metadata[{key!r}]")


def refuse_others(
    names: Iterable[str], tensors: Iterable[torch.Tensor], *, shards: bool = False
) -> None:
    """Raise for a value that is not a tensor with memory, or a name that is not a text.

    ``shards``: tensors of which this process has a part are no others.
    """
    for name, tensor in zip(names, tensors, strict=True):
        if not isinstance(name, str):
            raise errors.InvalidArgument(
                f"tensors has a name that is {kind_of(name)}, and must be str",
            )
        if not is_unicode(name):
            raise not_unicode(f"tensor {name!r} cannot be saved: its name")
        if not isinstance(tensor, torch.Tensor):
            raise _unsavable(name, f"{kind_of(tensor)}{_advice(name, tensor)}")
        if _is_distributed(tensor) and not shards:
            raise _unsavable(
                name,
                "a DTensor, of which each rank has a part: save with "
                "tensorizer_ops.distributed.save() on all ranks",
            )
        if isinstance(tensor, FakeTensor) and detect_fake_mode() is None:
            raise _unsavable(name, "a FakeTensor, which has no values")
        refuse_uninitialized(name, tensor)


def refuse_uninitialized(name: str, tensor: torch.Tensor, done: str = "saved") -> None:
    """Raise for an uninitialized tensor of a lazy module, which the ops would take for empty."""
    if is_lazy(tensor):
        raise errors.InvalidArgument(
            f"tensor {name!r} cannot be {done}: it is not initialized until its module runs",
        )


def _unsavable(name: str, what: str) -> errors.InvalidArgument:
    return errors.InvalidArgument(f"tensor {name!r} cannot be saved: it is {what}")


def _advice(name: str, value: object) -> str:
    """Return what to do with a value that is not a tensor; nothing if there is no advice for it."""
    if isinstance(value, torch.nn.Module):
        return ", a module: save its state_dict()"
    if isinstance(value, Mapping):
        return (
            f", as in a nested checkpoint: save that dict alone, or give what is in it names such "
            f"as {name + '.KEY'!r}"
        )
    if isinstance(value, str):
        return ": give texts as metadata="
    if isinstance(value, list | tuple) and any(isinstance(each, torch.Tensor) for each in value):
        return f": give each of its tensors a name, such as {name + '.0'!r}"
    if isinstance(value, int | float | complex | list | tuple):
        return ": save torch.as_tensor() of it, or give its text as metadata="
    if hasattr(value, "__array_interface__"):
        return ": save torch.as_tensor() of it"
    return ": leave it out" if value is None else ""


def _is_distributed(tensor: torch.Tensor) -> bool:
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return False
    distributed = sys.modules.get("torch.distributed.tensor")  # which is slow to import
    return distributed is not None and isinstance(tensor, distributed.DTensor)
