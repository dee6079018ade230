"""Making modules without memory for their weights."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

_active = contextvars.ContextVar("no_init_or_tensor", default=False)
_blocks = 0  # the number of active blocks in all threads
_blocks_lock = threading.RLock()  # reentrant: a signal handler may create a model
_undo: list[Callable[[], None]] = []


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Let this context make modules whose weights are on the meta device and not initialized."""
    global _blocks
    # The replaced functions are global; the context variable limits their effect to this context.
    with _blocks_lock:
        _blocks += 1
        if _blocks == 1:
            _replace(torch, "empty", _meta_empty)
            for module in (torch.nn.Linear, torch.nn.Embedding, torch.nn.LayerNorm):
                _replace(module, "reset_parameters", _skipped)
    token = _active.set(True)
    try:
        yield
    finally:
        _active.reset(token)
        with _blocks_lock:
            _blocks -= 1
            while _blocks == 0 and _undo:
                _undo.pop()()


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    replacement = make(original)
    setattr(owner, name, replacement)

    def undo() -> None:
        # If other code has replaced it meanwhile, leave that; ours has no effect without a context.
        if getattr(owner, name) is replacement:
            setattr(owner, name, original)

    _undo.append(undo)


def _meta_empty(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def empty(*args: Any, **kwargs: Any) -> torch.Tensor:
        if _active.get():
            kwargs["device"] = "meta"
        return original(*args, **kwargs)

    return empty


def _skipped(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def reset_parameters(*args: Any, **kwargs: Any) -> None:
        if not _active.get():
            original(*args, **kwargs)

    return reset_parameters
