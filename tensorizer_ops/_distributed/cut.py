"""Which part of a tensor on a device mesh this rank has."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from tensorizer_ops import errors


def shard(
    what: str, shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[list[int], list[int]]:
    """Return the starts and lengths of this rank's shard, cut as torch cuts it.

    Torch's own function lists all places in a dimension, and takes strided shards of uneven sizes
    for others than FSDP has cut. ``what`` is the subject of an error.
    """
    coordinate = mesh.get_coordinate()
    starts, lengths = [0] * len(shape), list(shape)
    if coordinate is None:
        return starts, [0] * len(shape)
    for number in _cutting(what, mesh, placements):
        if mesh.get_local_rank(number) != coordinate[number]:
            raise errors.InvalidArgument(
                f"{what} is on {mesh}, whose ranks do not ascend: torch takes them in their order"
            )
        dim = _dim(placements[number])
        size = lengths[dim]
        chunk = -(-size // mesh.size(number))
        start = min(coordinate[number] * chunk, size)
        starts[dim] += start
        lengths[dim] = min(chunk, size - start)
    return starts, lengths


def count_shards(dim: int, mesh: DeviceMesh, placements: Sequence[Placement]) -> int:
    """Return into how many shards a dimension of a tensor is cut."""
    cuts = [i for i, each in enumerate(placements) if _is_cut(each) and _dim(each) == dim]
    return math.prod(mesh.size(i) for i in cuts)


def _cutting(what: str, mesh: DeviceMesh, placements: Sequence[Placement]) -> list[int]:
    """Return the dimensions of a mesh that cut a tensor, in the order in which they do.

    The first dimension cuts first, but for strided shards: FSDP cuts what tensor parallelism has
    cut into ``split_factor`` parts before.
    """
    order: list[int] = []
    for number in reversed(range(len(placements))):
        placement = placements[number]
        if isinstance(placement, _StridedShard):
            parts, place = 1, 0
            while parts != placement.split_factor and place < len(order):
                if _dim(placements[order[place]]) == placement.dim:
                    parts *= mesh.size(order[place])
                place += 1
            if parts != placement.split_factor:
                raise errors.InvalidArgument(
                    f"{what} is {list(placements)} on {mesh}: the shards of a rank are not one part"
                )
            order.insert(place, number)
        elif isinstance(placement, Shard):
            order.insert(0, number)
    return order


def _dim(placement: Placement) -> int:
    assert isinstance(placement, Shard | _StridedShard)
    return placement.dim


def _is_cut(placement: Placement) -> bool:
    return isinstance(placement, Shard | _StridedShard)
