"""Where the elements of tensors lie."""

from __future__ import annotations

import torch
from torch.nn.parameter import is_lazy

# What stands in for elements of a size where their own type is not known.
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def plain_storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """What the elements lie in, if they lie as the type, the shape and the strides say.

    There is none of meta, fake, lazy, sparse, nested and quantized tensors, and of classes that
    wrap other tensors. It may be smaller than the elements: see :func:`has_memory`.
    """
    if is_lazy(tensor):  # which nothing else may be asked of
        return None
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return None
    storage = tensor.untyped_storage()
    if storage.device.type == "meta":
        return None
    try:
        storage.data_ptr()
    except RuntimeError:  # of a class that wraps
        return None
    return storage


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether every element lies in a storage; some programs take the memory out of it."""
    storage = plain_storage(tensor)
    if storage is None or tensor.numel() == 0:
        return storage is not None
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps)
    return (last + 1) * tensor.itemsize <= storage.nbytes()


def identity(tensor: torch.Tensor) -> object:
    """The same for tensors that are tied: of the same memory, and of the same values in it."""
    if not has_memory(tensor) or tensor.numel() == 0:
        return id(tensor)
    bits = tensor.is_conj(), tensor.is_neg()  # of views that hold other values in the same memory
    return tensor.data_ptr(), tensor.device, bits, tensor.dtype, tensor.shape, tensor.stride()
