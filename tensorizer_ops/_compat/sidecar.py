"""Pickles whose tensor data is in a separate file.

In the pickle, a storage is the persistent id ``("TensorizerPickler", 0, "storage", number,
dtype)``. The file holds a list of the storages, each once, as 1-D tensors of bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Iterable
from types import ModuleType
from typing import Any

import torch

from tensorizer_ops._base.memory import own_storage, storage_key, untyped
from tensorizer_ops._base.quoting import quoted

Storage = torch.UntypedStorage | torch.TypedStorage

_PICKLER = "TensorizerPickler"
_VERSION = 0


def saving_pickle(write: Callable[[list[torch.Tensor]], object]) -> ModuleType:
    """Return a ``pickle`` module for one ``torch.save``; it calls ``write`` if it has storages."""

    class Pickler(_Pickler):
        def dump(self, obj: object) -> None:
            super().dump(obj)
            if self.storages:
                write(self.storages)

    return _pickle_with(Pickler=Pickler)


def loading_pickle(read: Callable[[], Iterable[torch.Tensor]]) -> ModuleType:
    """Return a ``pickle`` module for one ``torch.load``; it calls ``read`` at the first storage."""

    class Unpickler(pickle.Unpickler):
        def load(self) -> Any:
            torchs = self.persistent_load
            storages: list[torch.UntypedStorage] | None = None
            sizes: list[int] = []

            def persistent_load(saved: Any) -> Any:
                nonlocal storages, sizes
                if not isinstance(saved, tuple) or saved[:1] != (_PICKLER,):
                    return torchs(saved)
                number, dtype = _number_and_dtype(saved)
                if storages is None:
                    storages = [own_storage(tensor) for tensor in read()]
                    sizes = [storage.nbytes() for storage in storages]
                if not 0 <= number < len(storages):
                    raise pickle.UnpicklingError(
                        f"the pickle refers to storage {number}, and the file has {len(storages)}"
                    )
                return torch.TypedStorage(
                    wrap_storage=storages[number], dtype=dtype, _internal=True
                )

            self.persistent_load = persistent_load  # type: ignore[method-assign]
            try:
                loaded = super().load()
            finally:
                self.persistent_load = torchs  # type: ignore[method-assign]
            # If a tensor does not fit into its storage, torch enlarges the storage with
            # uninitialized memory.
            for number, (storage, size) in enumerate(zip(storages or (), sizes, strict=True)):
                if storage.nbytes() > size:
                    raise pickle.UnpicklingError(
                        f"a tensor of the pickle needs {storage.nbytes()} bytes of storage "
                        f"{number}, which has {size}"
                    )
            return loaded

    return _pickle_with(Unpickler=Unpickler)


def _pickle_with(**classes: type) -> ModuleType:
    module = ModuleType(pickle.__name__)
    vars(module).update(vars(pickle) | classes)
    return module


class _Pickler(pickle.Pickler):
    """Collects storages. Other objects are left to the subclass that torch derives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.storages: list[torch.Tensor] = []
        self._numbers: dict[Hashable, int] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        torchs = vars(cls).get("persistent_id")
        if torchs is None:
            return

        def persistent_id(self: Any, obj: Any) -> Any:
            return self._collected(obj) or torchs(self, obj)

        cls.persistent_id = persistent_id  # type: ignore[method-assign]

    def _collected(self, obj: Any) -> Hashable | None:
        if not torch.is_storage(obj):
            return None
        storage = untyped(obj)
        key = storage_key(storage)  # which stays valid: `storages` keeps them alive
        if key is None:
            return None
        number = self._numbers.setdefault(key, len(self.storages))
        if number == len(self.storages):
            empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
            self.storages.append(empty.set_(storage))
        return _PICKLER, _VERSION, "storage", number, getattr(obj, "dtype", None)


def _number_and_dtype(saved: tuple[Any, ...]) -> tuple[int, torch.dtype]:
    match saved:
        case (_, int(version), *_) if version > _VERSION:
            raise pickle.UnpicklingError(
                f"the pickle has version {version} of tensorizer's format, and {_VERSION} is "
                "the newest that is supported"
            )
        case (_, _, "storage", int(number), torch.dtype() as dtype):
            return number, dtype
        case (_, _, "storage", int(number), None):
            return number, torch.uint8  # as torch does for a storage without a type
    shown = ", ".join(map(quoted, saved[:5] if isinstance(saved, tuple) else [saved]))
    raise pickle.UnpicklingError(f"the pickle has an object of an unknown kind: {shown}")
