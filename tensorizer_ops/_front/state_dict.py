"""State dicts whose tensors are loaded when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from tensorizer_ops import _core
from tensorizer_ops._front.reader import Reader


class AllAtOnce(Mapping[str, torch.Tensor]):
    """The tensors of a file, all loaded when the first is asked for.

    A library that is given a state dict may first make the model and reserve memory for it.
    """

    def __init__(self, reader: Reader, load: Callable[[], dict[str, torch.Tensor]]) -> None:
        self._names = list(reader)
        self._load = load
        self._loaded: dict[str, torch.Tensor] | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Later:
    """A tensor in an open file, of which an index loads a part, as those of ``safetensors``."""

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader = reader
        self._name = name

    def get_shape(self) -> list[int]:
        return list(self._reader.shape(self._name))

    def get_dtype(self) -> str:
        """Return the name of the element type in the safetensors format, such as ``"F32"``."""
        dtype = str(self._reader.dtype(self._name)).removeprefix("torch.")
        return _core.SAFETENSORS_DTYPES[dtype]

    def __getitem__(self, index: Any) -> torch.Tensor:
        if index is ...:
            return self._reader[self._name]
        return self._reader.load([self._name], slices={self._name: index})[self._name]


def one_by_one(reader: Reader) -> dict[str, Any]:
    """Return the tensors of a file, of which none is loaded yet."""
    return {name: Later(reader, name) for name in reader}
