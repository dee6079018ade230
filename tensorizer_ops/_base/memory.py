"""The memory of tensors: who has some, where it is, and which tensors have the same.

No other file of the package asks for an address or a storage: many kinds of tensors have none, and
some of them answer with the address 0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Iterator
from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tensorizer_ops._base.internals import held_memory, lacks_memory

# By element size, the integer type to view elements as where their own type is not supported.
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Span(NamedTuple):
    """The addresses at which the elements of a tensor begin and end."""

    storage: Hashable | None  # as storage_key() returns it
    begin: int
    end: int


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether type, shape and strides describe how the elements lie in a storage.

    They do not for meta, fake, lazy, sparse, nested, quantized and batched tensors, and for
    subclasses that wrap other tensors. The storage may be too small: see :func:`has_memory`.
    """
    return _plain_storage(tensor) is not None


def has_memory(tensor: torch.Tensor) -> bool:
    """Return whether a storage holds every element; some programs shrink storages to nothing."""
    return span(tensor) is not None


def span(tensor: torch.Tensor) -> Span | None:
    """Return where the elements of a tensor are; ``None`` if they have no memory."""
    storage = _plain_storage(tensor)
    if storage is None:
        return None
    start, size = storage.data_ptr(), tensor.itemsize
    begin = start + int(tensor.storage_offset()) * size
    if tensor.numel() == 0:
        return Span(storage_key(storage), begin, begin)
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    end = begin + (1 + sum((length - 1) * stride for length, stride in steps)) * size
    return Span(storage_key(storage), begin, end) if end <= start + storage.nbytes() else None


def grown(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor, or if it is empty the memory that it may grow into, as bytes."""
    storage = _plain_storage(tensor)
    if storage is None or tensor.numel():
        return tensor
    with torch.inference_mode(False):
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)


def plain_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that a subclass consists of, and any other tensor itself."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, name)
        if isinstance(part, torch.Tensor):
            yield from plain_parts(part)


def fills_storage(tensor: torch.Tensor) -> bool:
    """Return whether the elements of a tensor with memory are all that is in its storage."""
    return tensor.storage_offset() == 0 and tensor.nbytes == tensor.untyped_storage().nbytes()


def own_storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return a storage with the elements of a tensor and nothing else: of a copy if need be."""
    if not fills_storage(tensor) or not tensor.is_contiguous():
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return tensor.untyped_storage()


def identity(tensor: torch.Tensor) -> Hashable:
    """Return a key that is equal for tied tensors: those with the same memory and values.

    A tensor without memory, or without elements, is only tied to itself. The key is valid while the
    tensor lives.
    """
    where = span(tensor)
    if where is None or where.begin == where.end:
        return id(tensor)
    bits = tensor.is_conj(), tensor.is_neg()  # views with other values over the same memory
    return where.begin, tensor.device, bits, tensor.dtype, tensor.shape, tensor.stride()


def weak_storage(value: torch.Tensor | torch.UntypedStorage) -> StorageWeakRef:
    """Return a key that is equal for plain tensors of one storage, and keeps no elements alive.

    While it lives, no other storage is equal to it.
    """
    return StorageWeakRef(value.untyped_storage() if isinstance(value, torch.Tensor) else value)


def is_allocated_by_torch(tensor: torch.Tensor) -> bool:
    """Return whether a plain tensor has memory of torch, and not that of a NumPy array."""
    storage = _plain_storage(tensor)
    return storage is not None and bool(storage.resizable())


def untyped(storage: torch.UntypedStorage | torch.TypedStorage) -> torch.UntypedStorage:
    """Return a storage without its dtype."""
    return storage._untyped_storage if isinstance(storage, torch.TypedStorage) else storage


def storage_key(storage: torch.UntypedStorage) -> Hashable | None:
    """Return a key that is equal for storages that are the same memory; ``None`` without memory.

    Storages of different sizes count as different memory, as in other libraries.
    """
    address = _address(storage)
    return (storage.device, address, storage.nbytes()) if address else None


def users(tensor: torch.Tensor) -> int:
    """Return how many tensors, of whatever program or thread, have the storage of this one."""
    count: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return count


def copy_bytes(tensor: torch.Tensor) -> bytes | None:
    """Return the bytes of the elements in row-major order; ``None`` if they have no memory."""
    with held_memory([tensor]) as (own,):
        if is_lazy(tensor) or own.is_meta or lacks_memory(own):
            return None
        plain = own.cpu().resolve_conj().resolve_neg().contiguous()
        if not plain.nbytes:
            return b""
        return (ctypes.c_char * plain.nbytes).from_address(plain.data_ptr()).raw


def copyable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in a type that torch can copy: integers of the same size, or complex.

    Conjugate and negative bits are resolved, because integers have none, and because torch would
    resolve them on the CPU before an asynchronous copy has arrived.
    """
    tensor = tensor.resolve_conj().resolve_neg()
    return tensor if tensor.is_complex() else tensor.view(INTEGERS[tensor.itemsize])


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of the elements in row-major order: a view, or of a copy if need be."""
    if not tensor.is_contiguous():
        tensor = copyable(tensor).contiguous()  # a copy of bool has only 0 and 1
    # A contiguous tensor of one element may have any stride, and is viewed as bytes only with 1.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _plain_storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    if is_lazy(tensor):  # checked first: other queries raise for a lazy tensor
        return None
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return None
    try:
        storage = tensor.untyped_storage()
    except RuntimeError:  # of torch.func
        return None
    return None if _address(storage) is None else storage


def _address(storage: torch.UntypedStorage) -> int | None:
    if storage.device.type == "meta":  # also that of a FakeTensor
        return None
    try:
        return storage.data_ptr()
    except RuntimeError:  # of a subclass that wraps other tensors, a functional tensor or zeros
        return None
