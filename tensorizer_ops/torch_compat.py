"""``torch.save`` and ``torch.load`` with the data of tensors in a separate ``.tensors`` file.

with tensorizer_saving():
    torch.save(model, "model.pt")  # and model.pt.tensors
with tensorizer_loading(device="cuda"):
    model = torch.load("model.pt", weights_only=False)
"""

from __future__ import annotations

import functools
import inspect
import io
import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import IO, Any, BinaryIO, TypeVar

import torch

from tensorizer_ops import errors
from tensorizer_ops._compat.sidecar import loading_pickle, saving_pickle
from tensorizer_ops.serialization import TensorDeserializer, TensorSerializer

__all__ = ["tensorizer_loading", "tensorizer_saving"]

# The files that torch.save and torch.load accept.
_FileLike = str | os.PathLike[str] | IO[bytes]
# The files that TensorSerializer and TensorDeserializer accept.
Sidecar = io.BufferedIOBase | io.RawIOBase | BinaryIO | str | bytes | os.PathLike[Any] | int
SidecarOrCallback = Sidecar | Callable[[_FileLike], Sidecar | None]
SaveFunc = Callable[[Sidecar, Iterable[torch.Tensor], dict[str, Any]], Any]
LoadFunc = Callable[[Sidecar, dict[str, Any]], Iterable[torch.Tensor]]

_T = TypeVar("_T")
# The default of torch.load's argument pickle_module.
_LOAD_WRAPPER_DEFAULT_MODULE: Any = None
# Has tensorizer's name because programs configure logging by it.
logger = logging.getLogger("tensorizer.torch_compat")


@dataclass(frozen=True)
class _Saving:
    file_obj: SidecarOrCallback | None
    save_func: SaveFunc | None
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class _Loading:
    file_obj: SidecarOrCallback | None
    load_func: LoadFunc | None
    suppress_weights_only: bool
    kwargs: dict[str, Any]


# The context that the running code is in. Each thread and each asyncio task has its own.
_saving: ContextVar[_Saving | None] = ContextVar("_saving", default=None)
_loading: ContextVar[_Loading | None] = ContextVar("_loading", default=None)


@contextmanager
def tensorizer_saving(
    file_obj: SidecarOrCallback | None = None,
    *,
    save_func: SaveFunc | None = None,
    **kwargs: Any,
) -> Iterator[None]:
    """Make ``torch.save`` write the data of tensors to a ``.tensors`` file in this context.

    Affects only the thread or asyncio task that entered the context. Calls of ``torch.save`` made
    by ``save_func`` or by an object that is being pickled are not affected.

    Args:
        file_obj: where to save the data: a file as for :class:`TensorSerializer`, or a function
            that is called with the file given to ``torch.save`` and returns such a file, or
            ``None`` to leave the data in the pickle. By default it is the same path with the suffix
            ``.tensors`` appended.
        save_func: a function that saves the tensors instead of :class:`TensorSerializer`; called
            with ``file_obj``, the tensors and ``kwargs``.
        kwargs: further arguments for :class:`TensorSerializer`.
    """
    with _set(_saving, _Saving(file_obj, save_func, kwargs)), _replaced_save():
        yield


@contextmanager
def tensorizer_loading(
    file_obj: SidecarOrCallback | None = None,
    *,
    load_func: LoadFunc | None = None,
    suppress_weights_only: bool = False,
    **kwargs: Any,
) -> Iterator[None]:
    """Make ``torch.load`` read the data of tensors from a ``.tensors`` file in this context.

    Affects only the thread or asyncio task that entered the context. Files that torch alone saved
    can be loaded too. The pickle is trusted: as always with ``weights_only=False``, it can run
    arbitrary code.

    Args:
        file_obj: the file with the data, as for :func:`tensorizer_saving`.
        load_func: a function that loads the tensors instead of :class:`TensorDeserializer`; called
            with ``file_obj`` and ``kwargs``, it returns them in the order in which they were saved.
        suppress_weights_only: treat ``weights_only=True`` as ``False``; without this it raises
            ``RuntimeError``.
        kwargs: further arguments for :class:`TensorDeserializer`, such as ``device``;
            ``map_location`` moves only tensors whose data is in the pickle. The option ``trust`` is
            refused: nobody has signed the pickle.
    """
    _refuse_trust(kwargs.get("options"))
    context = _Loading(file_obj, load_func, suppress_weights_only, kwargs)
    with _set(_loading, context), _replaced_load():
        yield


def _save(
    original: Callable[..., object],
    obj: object,
    f: _FileLike,
    pickle_module: Any = pickle,
    *args: Any,
    **kwargs: Any,
) -> None:
    context = _saving.get()
    if context is None:
        original(obj, f, pickle_module, *args, **kwargs)
        return
    _must_be_default(pickle_module)
    sidecar = _sidecar(context.file_obj, f)
    chosen: ModuleType = pickle
    if sidecar is not None:
        chosen = saving_pickle(functools.partial(_write, context, sidecar))
    with _set(_saving, None):
        original(obj, f, chosen, *args, **kwargs)


def _write(context: _Saving, sidecar: Sidecar, tensors: list[torch.Tensor]) -> None:
    if context.save_func is not None:
        context.save_func(sidecar, tensors, context.kwargs)
        return
    with TensorSerializer(sidecar, **context.kwargs) as serializer:
        serializer.write_state_dict(tensors)


def _load(
    original: Callable[..., Any],
    f: _FileLike,
    map_location: Any = None,
    pickle_module: Any = _LOAD_WRAPPER_DEFAULT_MODULE,
    *,
    weights_only: bool | None = None,
    **kwargs: Any,
) -> Any:
    context = _loading.get()
    if context is None:
        return original(f, map_location, pickle_module, weights_only=weights_only, **kwargs)
    _must_be_default(pickle_module)
    if context.suppress_weights_only:
        weights_only = False
    if weights_only:
        raise RuntimeError(
            "Can not safely load weights when explicit pickle_module is specified, as one is here "
            "for tensors from another file: use weights_only=False, or "
            "tensorizer_loading(suppress_weights_only=True), for files that you trust"
        )
    read = functools.partial(_read, context, _sidecar(context.file_obj, f))
    with _set(_loading, None):
        return original(f, map_location, loading_pickle(read), weights_only=weights_only, **kwargs)


def _read(context: _Loading, sidecar: Sidecar | None) -> Iterable[torch.Tensor]:
    if sidecar is None:
        raise pickle.UnpicklingError(
            "the data of these tensors was saved to another file: give it as "
            "tensorizer_loading(file_obj=…)"
        )
    if context.load_func is not None:
        return context.load_func(sidecar, context.kwargs)
    with TensorDeserializer(sidecar, **context.kwargs) as deserializer:
        tensors = deserializer.tree()
    if not isinstance(tensors, list):
        raise pickle.UnpicklingError(
            "the .tensors file does not belong to a pickle: it has tensors by name, and not as a "
            "list"
        )
    return tensors


def _refuse_trust(options: object) -> None:
    """Raise if the tensors must be signed: a pickle may have others, and no signature covers it."""
    if isinstance(options, Mapping) and "trust" in options:
        raise errors.InvalidArgument(
            "option 'trust' is not for tensorizer_loading(): torch.load reads a pickle, which no "
            "signature covers: save the tensors alone with tensorizer_ops.save(), sign that file, "
            "and load it with 'trust'"
        )


def _must_be_default(pickle_module: Any) -> None:
    if pickle_module is not None and pickle_module is not pickle:
        raise ValueError(
            "pickle_module must be the default one if tensors are saved to another file"
        )


def _sidecar(file_obj: SidecarOrCallback | None, f: _FileLike) -> Sidecar | None:
    if file_obj is None:
        return _beside(f)
    return file_obj(f) if callable(file_obj) else file_obj


def _beside(f: Any) -> str | None:
    if isinstance(f, io.BytesIO):
        logger.warning(
            "A file in memory has no path for a .tensors file, so tensors stay in the pickle; "
            "file_obj= gives them a file"
        )
        return None
    try:
        name = os.fsdecode(f if isinstance(f, str | bytes | os.PathLike) else f.name)
    except (AttributeError, TypeError):
        raise TypeError(
            f"a {type(f).__name__} has no file name to append .tensors to: give the file for "
            "tensors with file_obj="
        ) from None
    # torch treats any name as a path, so make sure that it is not taken for a URI here.
    if ":" in name or name.startswith("~"):
        name = os.path.join(os.curdir, name)
    return name + ".tensors"


@contextmanager
def _set(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


class _Replaced:
    """Replaces a function of torch while at least one thread is in a context. Thread-safe."""

    def __init__(self, name: str, other: Callable[..., Any]) -> None:
        self._name = name
        self._other = other
        self._lock = threading.RLock()  # reentrant: a signal handler may save
        self._users = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._replace()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                # If other code has wrapped the replacement, it stays, and calls the original.
                if self._users == 0 and getattr(torch, self._name) is self._replacement:
                    setattr(torch, self._name, self._original)

    def _replace(self) -> None:
        self._original = original = getattr(torch, self._name)

        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return self._other(original, *args, **kwargs)

        _, *parameters = inspect.signature(self._other).parameters.values()
        replacement.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        self._replacement = replacement
        setattr(torch, self._name, replacement)


_replaced_save = _Replaced("save", _save)
_replaced_load = _Replaced("load", _load)
