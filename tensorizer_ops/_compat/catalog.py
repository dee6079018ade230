"""What a file holds, and which of it a caller wants to see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

from tensorizer_ops import errors
from tensorizer_ops._compat import paths
from tensorizer_ops._compat.paths import Path
from tensorizer_ops._compat.types import TensorType

# Takes a plain name, or the tuple of a path; what it returns counts as true or false.
FilterFuncType = Callable[[str | Sequence[str | int]], object]

# How much is read at a time where a caller takes tensors one by one, in the end and at first.
_BATCH = 64 << 20
_SMALLEST_BATCH = 64 << 10
_GROWTH = 16

# How many steps the paths of tensors may have together: for a start, and then for each of them.
_FREE_STEPS = 1 << 16
_MOST_STEPS = 32


class Layer(Enum):
    """The only one stands for all that holds tensors below."""

    LAYER = "layer"


LAYER = Layer.LAYER


class Catalog:
    """The tensors of a file, each known by its number there."""

    def __init__(self, reader: Any, filter_func: FilterFuncType | None) -> None:
        self.names: list[str]
        self._types: list[int]
        self.header_offsets: list[int]
        self.data_offsets: list[int]
        self.data_sizes: list[int]
        self._memory_sizes: list[int]
        (
            self.names,
            self._types,
            self.header_offsets,
            self.data_offsets,
            self.data_sizes,
            self._memory_sizes,
        ) = reader._list()
        if not self.names:
            raise errors._new(errors.InvalidFormat, "the file holds no tensors")
        # The numbers of those that the filter lets through, in the order of the file.
        self.kept: Sequence[int] = range(len(self.names))
        if filter_func is not None:
            self.kept = list(self.filter(self.kept, filter_func))
        # What a key leads to: the number of a tensor, or LAYER.
        self.structure: dict[str | int, int | Layer]
        if any(map(paths.is_nested, self.names)):
            kept = frozenset(self.kept)
            self.structure = {}
            for i, name in enumerate(self.names):
                step, *rest = paths.parse(name)
                if rest:
                    # One of which no tensor is kept is there, too.
                    self.structure[step] = LAYER
                elif i in kept:
                    self.structure[step] = i
        else:
            self.structure = {self.names[i]: i for i in self.kept}

    def is_of(self, reader: Any) -> bool:
        """Whether a reader's file has the same tensors in the same places."""
        names, types, header_offsets, data_offsets, data_sizes, _ = reader._list()
        here = self.names, self._types, self.header_offsets, self.data_offsets, self.data_sizes
        return here == (names, types, header_offsets, data_offsets, data_sizes)

    def find(self, key: Any) -> int | Layer | None:
        """The number of a tensor or a layer of them; None for what is not there."""
        found = self.structure.get(key)
        if found is None and isinstance(key, str):
            of_root = self.structure.get(f".{key}")
            if isinstance(of_root, int) and self.clean_name(of_root) == key:
                return of_root
        return found

    def below(self, prefix: Path) -> dict[Path, int]:
        """The numbers of the tensors inside a layer, by the rest of their paths."""
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
                # Each may become a dict, which takes a hundred times as much as its step here.
                raise errors._new(
                    errors.InvalidFormat,
                    f"the names of {len(below)} tensors have {steps} layers, more than what was "
                    "ever nested: load them by their names",
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
        """As a ``state_dict`` has it: without the dot of a root module, where that is no other."""
        name = self.names[number]
        of_root = name.startswith(".") and self._types[number] != TensorType.STATE_DICT
        return name[1:] if of_root and name[1:] not in self.structure else name

    def total_memory(self) -> int:
        return sum(self._memory_sizes[i] for i in self.kept)

    def total_data(self) -> int:
        return sum(self.data_sizes[i] for i in self.kept)

    def batches(self, numbers: Iterable[int]) -> Iterator[list[int]]:
        """One number first, because a caller may want no more; then more and more at a time."""
        batch: list[int] = []
        size, enough = 0, 0
        for i in numbers:
            batch.append(i)
            size += self._memory_sizes[i]
            if size >= enough:
                yield batch
                enough = min(max(_GROWTH * size, _SMALLEST_BATCH), _BATCH)
                batch, size = [], 0
        if batch:
            yield batch
