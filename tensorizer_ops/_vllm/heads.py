"""Refusing weights of which a model loses one, because it ties two that differ."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.memory import as_bytes
from tensorizer_ops._base.states import registered_in


def tied_alike(
    model: torch.nn.Module, found: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Return weights for a model in turn, which raise behind the last if it ties some that differ.

    It would drop one of them, or write it over the other, such as a head over the embeddings. The
    weights may have other names than the model, but for the last two parts.
    """
    groups: dict[int, set[str]] = defaultdict(set)
    for name, tensor in registered_in(model).items():
        groups[id(tensor)].add(_end(name))
    tied = {end: group for group in groups.values() if len(group) > 1 for end in group}
    return _alike(tied, found)  # which begins later, when vLLM may have taken the model apart


def _alike(
    tied: dict[str, set[str]], found: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    kept: dict[str, list[tuple[str, torch.Tensor]]] = defaultdict(list)
    for name, weight in found:
        if _end(name) in tied:
            kept[_end(name)].append((name, weight))
        yield name, weight
    for one, other in itertools.combinations(kept, 2):
        if one in tied[other] and not any(
            _is_equal(weight, same) for _, weight in kept[one] for _, same in kept[other]
        ):
            raise errors.InvalidArgument(
                f"the weights {kept[one][0][0]!r} and {kept[other][0][0]!r} differ, and the model "
                'ties them: start the server with a config that has "tie_word_embeddings": false'
            )


def _end(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    alike = (one.shape, one.dtype) == (other.shape, other.dtype)
    return alike and torch.equal(as_bytes(one), as_bytes(other))
