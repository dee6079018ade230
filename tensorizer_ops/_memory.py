"""The storages that hold the elements of tensors, and which tensors are tied."""

from __future__ import annotations

import torch
from torch.nn.parameter import is_lazy

# By element size, the integer type to view elements as where their own type is not supported.
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def plain_storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a tensor if type, shape and strides describe how elements lie in it.

    Returns ``None`` for meta, fake, lazy, sparse, nested and quantized tensors, and for subclasses
    that wrap other tensors. The storage may be too small for the elements: see :func:`has_memory`.
    """
    if is_lazy(tensor):  # checked first: other queries raise for a lazy tensor
        return None
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return None
    storage = tensor.untyped_storage()
    if storage.device.type == "meta":
        return None
    try:
        storage.data_ptr()
    except RuntimeError:  # a subclass that wraps other tensors
        return None
    return storage


def has_memory(tensor: torch.Tensor) -> bool:
    """Return whether the storage holds every element; some programs shrink storages to nothing."""
    storage = plain_storage(tensor)
    if storage is None or tensor.numel() == 0:
        return storage is not None
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps)
    return (last + 1) * tensor.itemsize <= storage.nbytes()


def identity(tensor: torch.Tensor) -> object:
    """Return a key that is equal for tied tensors: those with the same memory and values."""
    if not has_memory(tensor) or tensor.numel() == 0:
        return id(tensor)
    bits = tensor.is_conj(), tensor.is_neg()  # views with other values over the same memory
    return tensor.data_ptr(), tensor.device, bits, tensor.dtype, tensor.shape, tensor.stride()


def copyable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in a type that torch can copy: integers of the same size, or complex.

    Conjugate and negative bits are resolved, because integers have none, and because torch would
    resolve them on the CPU before an asynchronous copy has arrived.
    """
    tensor = tensor.resolve_conj().resolve_neg()
    return tensor if tensor.is_complex() else tensor.view(INTEGERS[tensor.itemsize])
