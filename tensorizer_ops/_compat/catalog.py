"""The tensors in a file, and which of them pass the caller's filter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

import torch

from tensorizer_ops import errors
from tensorizer_ops._compat import paths
from tensorizer_ops._compat.paths import Path
from tensorizer_ops._compat.types import TensorType

# Takes a plain name, or the path of a nested tensor as a tuple; returns true or false.
FilterFuncType = Callable[[str | Sequence[str | int]], object]

# Bytes to read at a time where a caller takes tensors one by one: _GROWTH times those of the batch
# before, within these bounds.
_BATCH = 64 << 20
_SMALLEST_BATCH = 64 << 10
_GROWTH = 16

# The limit on the total number of steps in paths: a constant plus a number for each tensor.
_FREE_STEPS = 1 << 16
_MOST_STEPS = 32


class Layer(Enum):
    """The type of ``LAYER``, which marks a key with nested tensors below it."""

    LAYER = "layer"


LAYER = Layer.LAYER


class Catalog:
    """The tensors of a file, identified by their numbers in the file."""

    def __init__(self, reader: Any, filter_func: FilterFuncType | None) -> None:
        listed = torch.classes.tensorizer._Internals(reader).list()
        self.names: list[str] = listed.names
        self._types: list[int] = listed.types
        self.header_offsets: list[int] = listed.header_offsets
        self.data_offsets: list[int] = listed.data_offsets
        self.data_sizes: list[int] = listed.data_sizes
        self.memory_sizes: list[int] = listed.memory_sizes
        # The number of the tensor that the data is stored with: its own unless names share it.
        self._stored_as: list[int] = listed.stored_as
        if not self.names:
            raise errors.InvalidFormat("the file holds no tensors")
        # The numbers of the tensors that pass the filter, in the order of the file.
        self.kept: Sequence[int] = range(len(self.names))
        if filter_func is not None:
            self.kept = list(self.filter(self.kept, filter_func))
        # The kept numbers of each tensor that has several names, by each of them.
        self._tied: dict[int, list[int]] = {}
        if len(set(self._stored_as)) < len(self.names):
            groups: dict[int, list[int]] = {}
            for i in self.kept:
                groups.setdefault(self._stored_as[i], []).append(i)
            self._tied = {i: group for group in groups.values() if len(group) > 1 for i in group}
        # For each top-level key, the number of a tensor or LAYER.
        self.structure: dict[str | int, int | Layer]
        if any(map(paths.is_nested, self.names)):
            kept = frozenset(self.kept)
            self.structure = {}
            for i, name in enumerate(self.names):
                step, *rest = paths.parse(name)
                if rest:
                    # Even if the filter keeps none of the layer's tensors.
                    self.structure[step] = LAYER
                elif i in kept:
                    self.structure[step] = i
        else:
            self.structure = {self.names[i]: i for i in self.kept}

    def is_of(self, reader: Any) -> bool:
        """Return whether a reader's file has the same tensors at the same offsets."""
        there = torch.classes.tensorizer._Internals(reader).list()
        data = there.data_offsets, there.data_sizes
        here = self.names, self._types, self.header_offsets, self.data_offsets, self.data_sizes
        return here == (there.names, there.types, there.header_offsets, *data)

    def find(self, key: Any) -> int | Layer | None:
        """Return the number of a tensor, ``LAYER``, or ``None`` if the key does not exist."""
        found = self.structure.get(key)
        if found is None and isinstance(key, str):
            of_root = self.structure.get(f".{key}")
            if isinstance(of_root, int) and self.clean_name(of_root) == key:
                return of_root
        return found

    def below(self, prefix: Path) -> dict[Path, int]:
        """Return the numbers of the kept tensors inside a layer, by their paths relative to it."""
        count = len(prefix)
        below: dict[Path, int] = {}
        steps = 0
        for i in self.kept:
            path = paths.parse(self.names[i])
            if path[:count] != prefix:
                continue
            below[path[count:]] = i
            steps += len(path)
            if steps > _FREE_STEPS + _MOST_STEPS * len(below):
                # Each step may become a dict, which takes a hundred times as much memory as the
                # step in the file.
                raise errors.InvalidFormat(
                    f"the names of {len(below)} tensors have {steps} layers, more than any saved "
                    "structure has: load them by their names",
                )
        return below

    def filter(self, numbers: Iterable[int], wanted: FilterFuncType | None) -> Iterable[int]:
        return (i for i in numbers if wanted is None or wanted(self.public_name(i)))

    def type(self, number: int) -> TensorType:
        return TensorType(self._types[number])

    def is_nested(self, number: int) -> bool:
        return paths.is_nested(self.names[number])

    def public_name(self, number: int) -> str | Path:
        return paths.public(self.names[number])

    def clean_name(self, number: int) -> str:
        """Return the name as a ``state_dict`` has it.

        Removes the leading dot of a root module's tensor, unless another tensor has that name.
        """
        name = self.names[number]
        of_root = name.startswith(".") and self._types[number] != TensorType.STATE_DICT
        return name[1:] if of_root and name[1:] not in self.structure else name

    def stored(self, numbers: Iterable[int]) -> list[int]:
        """Return the numbers of the tensors that the file stores these with, each once."""
        return list(dict.fromkeys(self._stored_as[i] for i in numbers))

    def with_ties(self, numbers: Iterable[int]) -> list[int]:
        """Return numbers and the kept numbers of all other names of their tensors, in order."""
        return sorted({j for i in numbers for j in self._tied.get(i, (i,))})

    def total_stored(self) -> int:
        return sum(self.data_sizes[i] for i in self.stored(range(len(self.names))))

    def total_memory(self) -> int:
        return sum(self.memory_sizes[i] for i in self.stored(self.kept))

    def total_data(self) -> int:
        return sum(self.data_sizes[i] for i in self.stored(self.kept))

    def batches(self, numbers: Iterable[int]) -> Iterator[list[int]]:
        """Yield batches of numbers: first a single number, as the caller may stop, then more."""
        batch: list[int] = []
        size, enough = 0, 0
        for i in numbers:
            batch.append(i)
            size += self.memory_sizes[i]
            if size >= enough:
                yield batch
                enough = min(max(_GROWTH * size, _SMALLEST_BATCH), _BATCH)
                batch, size = [], 0
        if batch:
            yield batch
