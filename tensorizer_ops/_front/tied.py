"""Refusing weights of which a model loses one, because it ties two that differ."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.memory import as_bytes
from tensorizer_ops._base.states import registered_in
from tensorizer_ops._front.reader import Reader
from tensorizer_ops._front.weight import Stored, Weight, stored_in


class Tied:
    """What a model ties, such as its head to the embeddings.

    If files have two that differ, it drops one of them, or writes one over the other. They may have
    other names than the model, but for the last two parts.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        groups: dict[int, set[str]] = defaultdict(set)
        for name, tensor in registered_in(model).items():
            groups[id(tensor)].add(_end(name))
        self._groups = {end: ends for ends in groups.values() if len(ends) > 1 for end in ends}

    def passing(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield weights, and raise behind the last if two that the model ties differ."""
        kept: list[tuple[str, torch.Tensor]] = []
        yield from self.kept(weights, kept)
        self._refuse(kept)

    def check(self, place: str) -> None:
        """Raise if two differ in a file that the model ties."""
        with Reader(place) as reader:
            names = [name for name in reader if _end(name) in self._groups]
            found = stored_in(reader, names, Stored)
            self._refuse([(stored.name, Weight(stored)) for stored in found])

    def kept(
        self, weights: Iterable[tuple[str, torch.Tensor]], kept: list[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield weights, and keep those that :meth:`torn` needs."""
        for name, weight in weights:
            if _end(name) in self._groups:
                kept.append((name, weight))
            yield name, weight

    def torn(self, kept: Iterable[tuple[str, torch.Tensor]]) -> tuple[str, str] | None:
        """Return the names of two weights that differ, and that the model ties."""
        ends: dict[str, list[tuple[str, torch.Tensor]]] = defaultdict(list)
        for name, weight in kept:
            ends[_end(name)].append((name, weight))
        for one, other in itertools.combinations(ends, 2):
            if one in self._groups[other] and not any(
                _is_equal(weight, same) for _, weight in ends[one] for _, same in ends[other]
            ):
                return ends[one][0][0], ends[other][0][0]
        return None

    def _refuse(self, kept: Iterable[tuple[str, torch.Tensor]]) -> None:
        if torn := self.torn(kept):
            raise errors.InvalidArgument(
                f"the weights {torn[0]!r} and {torn[1]!r} differ, and the model ties them: start "
                'the server with a config that has "tie_word_embeddings": false'
            )


def _end(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    alike = (one.shape, one.dtype) == (other.shape, other.dtype)
    return alike and torch.equal(as_bytes(one), as_bytes(other))
