"""What the compiled library does for this package beyond its ops, with tensors and Readers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tensorizer_ops import _core

_internals = torch.classes.tensorizer._Internals
_HeldMemory = torch.classes.tensorizer._HeldMemory


def reader_of(source: _core.HandedOver, options: Mapping[str, str], uri: str | None = None) -> Any:
    """Return a ``torch.classes.tensorizer.Reader`` of a source, of the file at a URI if given."""
    return _internals.reader_of(source.number, uri, options)


def writer_to(
    sink: _core.HandedOver, options: Mapping[str, str], metadata: Mapping[str, str] | None
) -> Any:
    """Return a ``torch.classes.tensorizer.Writer`` to a sink."""
    return _internals.writer_to(sink.number, options, metadata)


def unseen(method: Callable[..., Any], *arguments: object) -> Any:
    """Call a method unseen by tensors with ``__torch_function__`` and by ``torch.jit.trace``."""
    tracing = torch._C._get_tracing_state()
    if tracing is not None:
        torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        with torch._C.DisableTorchFunction():
            return method(*arguments)
    finally:
        if tracing is not None:
            torch._C._set_tracing_state(tracing)  # type: ignore[attr-defined]


@contextmanager
def held_memory(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Give other tensors over the memory of plain ones, which stays in place in the block."""
    memory = unseen(_HeldMemory, list(tensors))
    try:
        yield unseen(memory.tensors)
    finally:
        unseen(memory.release)


def lacks_memory(tensor: torch.Tensor) -> str:
    """Return why the elements of a tensor are not in memory of its own; empty if they are."""
    why: str = unseen(_internals.lacks_memory, [tensor])
    return why


def is_traced() -> bool:
    """Return whether a compiler traces this thread."""
    return bool(unseen(_internals.is_traced))


def is_fake() -> bool:
    """Return whether tensors of this thread have no values, and no compiler asked for that."""
    return bool(unseen(_internals.is_fake))


def load_constants(
    loader: object,
    uri: str,
    strict: bool,
    verify: str,
    threads: int,
    options: Mapping[str, str],
) -> list[str]:
    """Fill an AOTInductor package; return the names that only the file has."""
    package = torch._C._aoti.AOTIModelPackageLoader
    if not isinstance(loader, package):
        raise TypeError(
            f"model is {type(loader).__name__}, and must be an AOTInductor package that "
            "torch._inductor.aoti_load_package() loaded"
        )
    # pybind11 keeps the address of the C++ object behind the head of the Python object.
    address = ctypes.c_size_t.from_address(id(loader) + object.__basicsize__).value
    handed = _core.object_at(address)
    unexpected: list[str] = _internals.load_constants(
        handed.number, uri, strict, verify, threads, options
    )
    return unexpected
