"""Which rank has which box of the tensors that several ranks save."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from tensorizer_ops import errors
from tensorizer_ops._base.boxes import make_up, strides_of
from tensorizer_ops._base.savable import held, local_tensor
from tensorizer_ops._distributed.cut import shard


class Box(NamedTuple):
    """Where in a tensor a shard of it starts, and how long it is, in each dimension."""

    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.lengths)

    def common(self, other: Box) -> Box | None:
        """Return what both boxes have, if there is anything."""
        starts, lengths = [], []
        for start, length, begin, size in zip(*self, *other, strict=True):
            first = max(start, begin)
            left = min(start + length, begin + size) - first
            if left <= 0:
                return None
            starts.append(first)
            lengths.append(left)
        return Box(tuple(starts), tuple(lengths))


class Holder(NamedTuple):
    """A box, and the ranks that have it."""

    box: Box
    ranks: list[int]


class Saved(NamedTuple):
    """A tensor of the file. All numbers are bytes: the last dimension counts them."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    holders: list[Holder]

    def boxes(self, start: int, stop: int) -> Iterator[Box]:
        """Yield the boxes that are these bytes of the data, in their order."""
        return _boxes(self.shape, self.strides, start, stop)

    def position(self, starts: Sequence[int]) -> int:
        """Return the place of an element among the bytes of the data."""
        return sum(map(int.__mul__, starts, self.strides))


def _boxes(
    shape: Sequence[int],
    strides: Sequence[int],
    start: int,
    stop: int,
    before: tuple[int, ...] = (),
) -> Iterator[Box]:
    row = strides[0]
    ones = (1,) * len(before)
    inside = (0,) * (len(shape) - 1)

    def rows(first: int, count: int) -> Box:
        return Box((*before, first, *inside), (*ones, count, *shape[1:]))

    def inner(of: int, begin: int, end: int) -> Iterator[Box]:
        return _boxes(shape[1:], strides[1:], begin, end, (*before, of))

    first, skipped = divmod(start, row)
    last, rest = divmod(stop, row)
    if first == last:
        yield from inner(first, skipped, rest)
        return
    if skipped:
        yield from inner(first, skipped, row)
        first += 1
    if last > first:
        yield rows(first, last - first)
    if rest:
        yield from inner(last, 0, rest)


def local_shard(name: str, tensor: torch.Tensor, done: str = "saved") -> tuple[torch.Tensor, Box]:
    """Return what this rank has of a tensor in memory, and where in the whole it is.

    ``done`` is what is to be done with it, for messages.
    """
    if isinstance(tensor, DTensor):
        if any(placement.is_partial() for placement in tensor.placements):
            raise errors.InvalidArgument(
                f"tensor {name!r} cannot be {done}: its placements are {tensor.placements}, and "
                "the values of Partial are not added up yet: redistribute() it"
            )
        local = local_tensor(name, tensor)
        what = f"tensor {name!r} cannot be {done}: it"
        starts, lengths = shard(what, tensor.shape, tensor.device_mesh, tensor.placements)
        box = Box(tuple(starts), tuple(lengths))
        if tuple(local.shape) != box.lengths and (local.numel() or box.size):
            raise errors.InvalidArgument(
                f"tensor {name!r} cannot be {done}: this rank has {list(local.shape)} of it, "
                f"and {tensor.placements} of {list(tensor.shape)} are {list(box.lengths)}"
            )
    else:
        local = local_tensor(name, tensor)
        box = Box((0,) * tensor.dim(), tuple(tensor.shape))
    with held([name], [local]) as (own,):
        return own.resolve_conj().resolve_neg(), box


def merged(everyone: Sequence[Sequence[Any]]) -> list[Any]:
    """Return what all ranks have: name, dtype, shape, and who has which box, by tensor.

    Of each box, a rank announces the name, the dtype, the shape, the starts and the lengths.
    """
    kinds: dict[str, tuple[Any, Any]] = {}
    boxes: dict[str, dict[Box, list[int]]] = {}
    for rank, announced in enumerate(everyone):
        for name, dtype, shape, starts, lengths in announced:
            kind = kinds.setdefault(name, (dtype, shape))
            if kind != (dtype, shape):
                raise errors.InvalidArgument(
                    f"tensor {name!r} is {dtype} {shape} on rank {rank}, and {kind[0]} {kind[1]} "
                    "on another one"
                )
            box = Box(tuple(starts), tuple(lengths))
            boxes.setdefault(name, {}).setdefault(box, []).append(rank)
    return [
        [name, dtype, shape, _tiling(name, shape, boxes[name])]
        for name, (dtype, shape) in kinds.items()
    ]


def _tiling(name: str, shape: list[int], boxes: Mapping[Box, list[int]]) -> list[Holder]:
    """Return those boxes that make up the tensor."""
    whole = Box((0,) * len(shape), tuple(shape))
    if whole in boxes:
        return [Holder(whole, boxes[whole])]
    holders = [Holder(box, ranks) for box, ranks in boxes.items() if box.size > 0]
    if make_up(shape, [holder.box for holder in holders]):
        return holders
    for one, other in combinations(holders, 2):
        if one.box.common(other.box):
            raise errors.InvalidArgument(
                f"tensor {name!r} cannot be saved: ranks {one.ranks[0]} and {other.ranks[0]} cut "
                f"it in different ways: {list(one.box.lengths)} at {list(one.box.starts)}, and "
                f"{list(other.box.lengths)} at {list(other.box.starts)}, of {shape}"
            )
    held = sum(holder.box.size for holder in holders)
    ranks = sorted(rank for holder in holders for rank in holder.ranks)
    raise errors.InvalidArgument(
        f"tensor {name!r} cannot be saved: it has {whole.size} elements, and the shards of all "
        f"ranks have {held}; these have shards: {', '.join(map(str, ranks)) or 'none'}"
    )


def in_bytes(shape: Sequence[int], itemsize: int, holders: Sequence[Any]) -> Saved:
    """Return a tensor of :func:`merged`, measured in bytes."""
    scaled = _scaled(shape, itemsize)
    return Saved(
        scaled,
        strides_of(scaled),
        [
            Holder(Box(_scaled_starts(starts, itemsize), _scaled(lengths, itemsize)), ranks)
            for (starts, lengths), ranks in holders
        ],
    )


def _scaled(lengths: Sequence[int], itemsize: int) -> tuple[int, ...]:
    return (*lengths[:-1], lengths[-1] * itemsize) if lengths else (itemsize,)


def _scaled_starts(starts: Sequence[int], itemsize: int) -> tuple[int, ...]:
    return (*starts[:-1], starts[-1] * itemsize) if starts else (0,)


class LocalBytes:
    """The bytes of what this rank has of a tensor: shards, and where they are in the whole."""

    def __init__(self, shards: Sequence[tuple[torch.Tensor, Box]]) -> None:
        self._shards = [
            (
                local if local.dim() else local.reshape(1),
                Box(
                    _scaled_starts(box.starts, local.itemsize),
                    _scaled(box.lengths, local.itemsize),
                ),
            )
            for local, box in shards
        ]

    def box(self, box: Box) -> torch.Tensor:
        """Return a box of the whole tensor that is in a shard of this rank. May copy it."""
        found, own = next(one for one in self._shards if one[1].common(box) == box)
        *outer, last = [start - begin for start, begin in zip(box.starts, own.starts, strict=True)]
        for dim, start in enumerate(outer):
            found = found.narrow(dim, start, box.lengths[dim])
        length, item = box.lengths[-1], found.itemsize
        first, end = last // item, -(-(last + length) // item)
        found = found.narrow(-1, first, end - first)
        if found.stride(-1) != 1:
            found = found.clone(memory_format=torch.contiguous_format)
        return found.view(torch.uint8).narrow(-1, last - first * item, length)
