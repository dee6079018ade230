"""Refusing weights of which a model loses one, because it ties two that differ."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Set

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.memory import as_bytes, identity
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._base.states import registered_in
from tensorizer_ops._front.reader import Reader
from tensorizer_ops._front.weight import Stored, Weight, stored_in

_Named = Iterable[tuple[str, torch.Tensor]]
_Contents = tuple[torch.Size, torch.dtype, int]
_Weights = dict[str, Weight | _Contents]  # by name


class Tied:
    """Looks at weights for a model that ties some of its own, such as its head to the embeddings.

    If there are two that differ, the model drops one, or writes one over the other. They may have
    other names than in the model, but must end as these do: with all parts, or the last two, or
    more if others end so, too.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        own = {name: identity(tensor) for name, tensor in registered_in(model).items()}
        count = Counter(own.values())
        is_tied = any(each > 1 for each in count.values())
        self._tensors = own if is_tied else {}
        self._ends: dict[str, set[Hashable]] = defaultdict(set)
        for name, tensor in self._tensors.items():
            for end in _ends(name):
                self._ends[end].add(tensor)
        self._tied = {tensor for tensor, each in count.items() if each > 1}
        self._found: dict[Hashable, dict[str, _Weights]] = defaultdict(lambda: defaultdict(dict))

    def refusing(self, weights: _Named) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield weights, and raise behind the last if two that the model ties differ."""
        yield from self.seeing(weights)
        if torn := self._torn(None):
            raise errors.InvalidArgument(
                f"the weights {quoted(torn[0])} and {quoted(torn[1])} differ, and the model ties "
                'them: start the server with a config that has "tie_word_embeddings": false'
            )

    def refuse(self, place: str) -> None:
        """Raise if two differ in a file that the model ties. The others are not read."""
        with Reader(place) as reader:
            names = [name for name in reader if self._known_as(name) is not None]
            found = stored_in(reader, names, Stored)
            for _ in self.refusing((stored.name, Weight(stored)) for stored in found):
                pass

    def seeing(self, weights: _Named) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield weights, and look at them."""
        for name, weight in weights:
            if (known := self._known_as(name)) is not None:
                end, tensor = known
                # Others would stay in memory.
                kept = weight if isinstance(weight, Weight) else _contents(weight)
                self._found[tensor][end][name] = kept
            yield name, weight

    def tell(self, different: dict[str, str], used: Set[str]) -> None:
        """List what differs in the file, and the model ties, of the weights that it has used."""
        if torn := self._torn(used):
            different[torn[0]] = (
                f"the file has another than {quoted(torn[1])}, with which it is tied"
            )

    def _torn(self, used: Set[str] | None) -> tuple[str, str] | None:
        """Return the names of two weights that differ, and that the model ties.

        Those that have their names in the model count. If it is not known which are used, others
        may have names that end alike, such as those of a draft: then the model can have one of
        each.
        """
        for found in map(_sure, self._found.values()):
            every = [{name: each} for named in found.values() for name, each in named.items()]
            own = [each for each in every if next(iter(each)) in self._tensors]
            if used is not None:  # a loader passes over a head that the model ties
                those = used - self._tensors.keys()
                groups = own + [each for each in every if next(iter(each)) in those]
            else:
                groups = own if len(own) > 1 else [*found.values()]
            if len(groups) > 1:
                each = [(next(iter(named)), _all(named)) for named in groups]
                for (one, of_one), (other, of_other) in itertools.combinations(each, 2):
                    if not of_one & of_other:
                        return one, other
        return None

    def _known_as(self, name: str) -> tuple[str, Hashable] | None:
        """Return what the name of a weight shares with one of the model, and the tied tensor."""
        if name in self._tensors:
            known = {self._tensors[name]}
            end = name
        else:
            ends = (*_ends(name), name.rpartition(".")[2])
            end = next((each for each in ends if each in self._ends), "")
            known = self._ends.get(end, set())
        if len(known) == 1 and known <= self._tied:
            return end, next(iter(known))
        return None


def _ends(name: str) -> Iterator[str]:
    """Yield the name, and ends of it of two parts or more, the longest first."""
    parts = name.split(".")
    yield name
    yield from (".".join(parts[i:]) for i in range(1, len(parts) - 1))


def _sure(found: dict[str, _Weights]) -> dict[str, _Weights]:
    """Leave out weights whose names end as one of one part, unless both have the same prefix.

    Such a name, as "weight", ends others, too.
    """

    def is_sure(name: str, end: str) -> bool:
        prefix = name.removesuffix(end)
        others = (prefix + other in named for other, named in found.items() if other != end)
        return not prefix or "." in end or any(others)

    return {
        end: sure
        for end, named in found.items()
        if (sure := {name: each for name, each in named.items() if is_sure(name, end)})
    }


def _all(found: _Weights) -> set[_Contents]:
    return {_contents(each) if isinstance(each, Weight) else each for each in found.values()}


def _contents(weight: torch.Tensor) -> _Contents:
    """Return what tells a weight from others.

    Nobody gains by two of one CRC32: who could give these could give two that are equal.
    """
    return weight.shape, weight.dtype, torch.ops.tensorizer.crc32(as_bytes(weight))
