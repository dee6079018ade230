"""Tensors of a model that are made of several tensors of a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from tensorizer_ops import errors
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._distributed.cut import count_shards, shard
from tensorizer_ops._distributed.placed import (
    Placed,
    Placements,
    Slice,
    Stored,
    checked_placements,
)

_FIRST = Shard(0)


class Made(NamedTuple):
    """A tensor that the file does not have under its name."""

    name: str
    placed: Placed
    sources: list[str]


class Fused:
    """Tensors of the file that the model has as one, such as query, key and value of attention.

    Every rank gets its shard of each source, one after another along ``dim``: the rows of query,
    key and value that belong together. So ``full_tensor()`` has these rows in another order than
    the sources one after another.

    Args:
        sources: names in the file, with a ``*`` for every ``*`` of the key in the plan. A tuple of
            a name and a slice is a part of a tensor along ``dim``, for files whose tensors are
            fused themselves.
        placements: of each source, as in a plan.
        dim: the dimension along which the sources follow one another.
    """

    def __init__(
        self, *sources: str | tuple[str, slice], placements: Placements = _FIRST, dim: int = 0
    ) -> None:
        self.sources = [(s, slice(None)) if isinstance(s, str) else s for s in sources]
        self.placements = placements
        self.dim = dim
        if not sources:
            raise errors.InvalidArgument("Fused() needs sources")

    def __repr__(self) -> str:
        sources = ", ".join(map(repr, self.sources))
        return f"Fused({sources}, placements={self.placements}, dim={self.dim})"

    def _made(self, key: str, mesh: DeviceMesh, stored: Mapping[str, Stored]) -> Iterator[Made]:
        where = f"plan[{key!r}]"
        for stars in matching(where, self.sources[0][0], stored):
            sources = [(_filled(where, name, stars), taken) for name, taken in self.sources]
            names = [name for name, _ in sources]
            first = _stored(where, names[0], stored)
            if not -len(first.shape) <= self.dim < len(first.shape):
                raise errors.InvalidArgument(
                    f"{where} has dim={self.dim}, and tensor {quoted(names[0])} the shape "
                    f"{first.shape}"
                )
            dim = self.dim % len(first.shape)
            placements = checked_placements(where, self.placements, mesh, first.shape)
            slices, rows = [], 0
            for name, taken in sources:
                shape, kind = _stored(where, name, stored)
                start, stop, step = taken.indices(shape[dim])
                given = [each for each in (taken.start, taken.stop) if each is not None]
                outside = any(abs(each) > shape[dim] for each in given) or stop < start
                if outside or step != 1:
                    raise errors.InvalidArgument(
                        f"{where}: tensor {quoted(name)} {_described(stored[name])} has no rows "
                        f"{taken}, which must be within it, without a step"
                    )
                shape = [*shape[:dim], stop - start, *shape[dim + 1 :]]
                alike = [*shape[:dim], first.shape[dim], *shape[dim + 1 :]]
                if Stored(alike, kind) != first:
                    raise errors.InvalidArgument(
                        f"{where}: {taken} of tensor {quoted(name)} {_described(stored[name])} "
                        f"cannot be fused with {quoted(names[0])} {_described(first)}"
                    )
                if shape[dim] % (ranks := count_shards(dim, mesh, placements)):
                    raise errors.InvalidArgument(
                        f"{where}: {shape[dim]} rows of tensor {quoted(name)} cannot be divided "
                        f"evenly among {ranks} ranks"
                    )
                starts, lengths = shard(where, shape, mesh, placements)
                starts[dim] += start
                slices.append(Slice(name, starts, lengths))
                rows += shape[dim]
            shape = [*first.shape[:dim], rows, *first.shape[dim + 1 :]]
            placed = Placed(slices, partial(torch.cat, dim=dim), shape, mesh, placements)
            yield Made(_filled(where, key, stars), placed, names)


class Stacked:
    """Numbered tensors of the file that the model has as one, such as the weights of experts.

    With ``Shard(0)``, every rank reads the experts that it has, and no others.

    Args:
        source: a name in the file, with a ``*`` for every ``*`` of the key in the plan, and ``{}``
            in place of the number.
        placements: of the stacked tensor, as in a plan.
        order: the numbers, in the order in which they are stacked; ascending by default. A number
            may be there twice, as an expert that several ranks have.
    """

    def __init__(
        self, source: str, *, placements: Placements = _FIRST, order: Iterable[int] | None = None
    ) -> None:
        self.source = source
        self.placements = placements
        self.order = None if order is None else list(order)
        if source.count("{}") != 1 or self.order == []:
            raise errors.InvalidArgument(
                f"Stacked({source!r}) needs a {{}} in place of the number, and an order with one"
            )

    def __repr__(self) -> str:
        return f"Stacked({self.source!r}, placements={self.placements}, order={self.order})"

    def _made(self, key: str, mesh: DeviceMesh, stored: Mapping[str, Stored]) -> Iterator[Made]:
        where = f"plan[{key!r}]"
        for stars, found in matching(where, self.source, stored).items():
            names = sorted(found, key=lambda name: (len(name), name))  # by their numbers
            if self.order is not None:
                source = _filled(where, self.source, stars)
                names = [source.replace("{}", str(number)) for number in self.order]
            first = _stored(where, names[0], stored)
            for name in names:
                if _stored(where, name, stored) != first:
                    raise errors.InvalidArgument(
                        f"{where}: tensor {quoted(name)} {_described(stored[name])} cannot be "
                        f"stacked with {quoted(names[0])} {_described(first)}"
                    )
            shape = [len(names), *first.shape]
            placements = checked_placements(where, self.placements, mesh, shape)
            (start, *starts), (count, *lengths) = shard(where, shape, mesh, placements)
            slices = [Slice(name, starts, lengths) for name in names[start : start + count]]
            join = torch.stack
            if not slices:
                slices = [Slice(names[0], starts, [0] * len(starts))]
                join = partial(_none, shape=[0, *lengths])
            placed = Placed(slices, join, shape, mesh, placements)
            yield Made(_filled(where, key, stars), placed, found)


def _none(tensors: list[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    return tensors[0].new_empty(shape)


def matching(where: str, pattern: str, names: Iterable[str]) -> dict[tuple[str, ...], list[str]]:
    """Return the names that match, by what stands for each ``*``, which is never a dot."""
    text = re.escape(pattern).replace(r"\*", r"([^.]*)").replace(r"\{\}", r"(?:0|[1-9][0-9]*)")
    regex = re.compile(text)
    found: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        if match := regex.fullmatch(name):
            found.setdefault(match.groups(), []).append(name)
    if not found:
        number = ", with a number in place of {}" if "{}" in pattern else ""
        raise errors.InvalidArgument(f"{where}: the file has no tensor {quoted(pattern)}{number}")
    return found


def _filled(where: str, pattern: str, stars: Sequence[str]) -> str:
    """Return a pattern with a text in place of each ``*``."""
    texts = pattern.split("*")
    if len(texts) - 1 != len(stars):
        raise errors.InvalidArgument(f"{where}: {pattern!r} must have as many * as the source")
    return "".join(text + star for text, star in zip(texts, [*stars, ""], strict=True))


def _stored(where: str, name: str, stored: Mapping[str, Stored]) -> Stored:
    if name not in stored:
        raise errors.NoSuchTensor(f"{where}: the file has no tensor {quoted(name)}")
    return stored[name]


def _described(stored: Stored) -> str:
    return f"({str(stored.dtype).removeprefix('torch.')}{stored.shape})"
