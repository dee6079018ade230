"""Refusing weights of which a model loses one, because it ties two that differ."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.memory import as_bytes
from tensorizer_ops._base.states import registered_in
from tensorizer_ops._front.reader import Reader
from tensorizer_ops._front.weight import Stored, Weight, stored_in

_Named = Iterable[tuple[str, torch.Tensor]]
_Contents = tuple[torch.Size, torch.dtype, int]


class Tied:
    """Looks at weights for a model that ties some of its own, such as its head to the embeddings.

    If there are two that differ, the model drops one, or writes one over the other. They may have
    other names than the model, but for the last two parts.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        groups: dict[int, set[str]] = defaultdict(set)
        for name, tensor in registered_in(model).items():
            groups[id(tensor)].add(_end(name))
        self._groups = {end: ends for ends in groups.values() if len(ends) > 1 for end in ends}
        self._found: dict[str, dict[str, Weight | _Contents]] = defaultdict(dict)

    def refusing(self, weights: _Named) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield weights, and raise behind the last if two that the model ties differ."""
        yield from self.seeing(weights)
        if torn := self.torn():
            raise errors.InvalidArgument(
                f"the weights {torn[0]!r} and {torn[1]!r} differ, and the model ties them: start "
                'the server with a config that has "tie_word_embeddings": false'
            )

    def refuse(self, place: str) -> None:
        """Raise if two differ in a file that the model ties. The others are not read."""
        with Reader(place) as reader:
            names = [name for name in reader if _end(name) in self._groups]
            found = stored_in(reader, names, Stored)
            for _ in self.refusing((stored.name, Weight(stored)) for stored in found):
                pass

    def seeing(self, weights: _Named) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield weights, and look at them."""
        for name, weight in weights:
            if _end(name) in self._groups:
                # Others would stay in memory.
                kept = weight if isinstance(weight, Weight) else _contents(weight)
                self._found[_end(name)][name] = kept
            yield name, weight

    def torn(self) -> tuple[str, str] | None:
        """Return the names of two weights that differ, and that the model ties."""
        for (one, first), (other, second) in itertools.combinations(self._found.items(), 2):
            if one in self._groups[other] and not _all(first) & _all(second):
                return next(iter(first)), next(iter(second))
        return None


def _end(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _all(found: Mapping[str, Weight | _Contents]) -> set[_Contents]:
    return {_contents(each) if isinstance(each, Weight) else each for each in found.values()}


def _contents(weight: torch.Tensor) -> _Contents:
    """Return what tells a weight from others.

    Nobody gains by two of one CRC32: who could give these could give two that are equal.
    """
    return weight.shape, weight.dtype, torch.ops.tensorizer.crc32(as_bytes(weight))
