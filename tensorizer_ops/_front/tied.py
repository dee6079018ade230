"""Refusing weights of which a model loses one, because it ties two that differ."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.memory import as_bytes, identity
from tensorizer_ops._base.states import registered_in
from tensorizer_ops._front.reader import Reader
from tensorizer_ops._front.weight import Stored, Weight, stored_in

_Named = Iterable[tuple[str, torch.Tensor]]
_Contents = tuple[torch.Size, torch.dtype, int]
_Weights = dict[str, Weight | _Contents]  # by name


class Tied:
    """Looks at weights for a model that ties some of its own, such as its head to the embeddings.

    If there are two that differ, the model drops one, or writes one over the other. They may have
    other names than in the model, but for the last two parts, if these tell what it ties.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        own = {name: identity(tensor) for name, tensor in registered_in(model).items()}
        count = Counter(own.values())
        ends: dict[str, set[Hashable]] = defaultdict(set)
        for name, tensor in own.items():
            ends[_end(name)].add(tensor)
        # Which tensor of the model has a name, or the end of one if that is enough to tell.
        known = {end: tensor for end, (tensor, *more) in ends.items() if not more} | own
        self._tied = {name: tensor for name, tensor in known.items() if count[tensor] > 1}
        self._found: dict[Hashable, dict[str, _Weights]] = defaultdict(lambda: defaultdict(dict))

    def refusing(self, weights: _Named) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield weights, and raise behind the last if two that the model ties differ."""
        yield from self.seeing(weights)
        if torn := self._torn():
            raise errors.InvalidArgument(
                f"the weights {torn[0]!r} and {torn[1]!r} differ, and the model ties them: start "
                'the server with a config that has "tie_word_embeddings": false'
            )

    def refuse(self, place: str) -> None:
        """Raise if two differ in a file that the model ties. The others are not read."""
        with Reader(place) as reader:
            names = [name for name in reader if self._known_as(name)]
            found = stored_in(reader, names, Stored)
            for _ in self.refusing((stored.name, Weight(stored)) for stored in found):
                pass

    def seeing(self, weights: _Named) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield weights, and look at them."""
        for name, weight in weights:
            if known := self._known_as(name):
                # Others would stay in memory.
                kept = weight if isinstance(weight, Weight) else _contents(weight)
                self._found[self._tied[known]][known][name] = kept
            yield name, weight

    def tell(self, different: dict[str, str]) -> None:
        """List what differs in the file, and the model ties."""
        if torn := self._torn():
            different[torn[0]] = f"the file has another than {torn[1]!r}, with which it is tied"

    def _torn(self) -> tuple[str, str] | None:
        """Return the names of two weights that differ, and that the model ties."""
        for found in self._found.values():
            for one, other in itertools.combinations(found.values(), 2):
                if not _all(one) & _all(other):
                    return next(iter(one)), next(iter(other))
        return None

    def _known_as(self, name: str) -> str | None:
        return next((each for each in (name, _end(name)) if each in self._tied), None)


def _end(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _all(found: _Weights) -> set[_Contents]:
    return {_contents(each) if isinstance(each, Weight) else each for each in found.values()}


def _contents(weight: torch.Tensor) -> _Contents:
    """Return what tells a weight from others.

    Nobody gains by two of one CRC32: who could give these could give two that are equal.
    """
    return weight.shape, weight.dtype, torch.ops.tensorizer.crc32(as_bytes(weight))
