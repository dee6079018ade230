"""Tensors on a device mesh: what of them this rank has, and where the file has that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import kind_of
from tensorizer_ops._base.boxes import strides_of
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._distributed.cut import shard

Placements: TypeAlias = Placement | Sequence[Placement]


class Stored(NamedTuple):
    """What the file has under a name."""

    shape: list[int]
    dtype: torch.dtype


class Slice(NamedTuple):
    """What is needed of a tensor in the file."""

    name: str
    starts: list[int]
    lengths: list[int]


class Placed(NamedTuple):
    """A tensor on a mesh, and the slices of the file that are this rank's shard of it."""

    slices: list[Slice]
    join: Callable[[list[torch.Tensor]], torch.Tensor]
    shape: list[int]
    mesh: DeviceMesh
    placements: list[Placement]

    @property
    def is_whole(self) -> bool:
        """Return whether every rank of the mesh has the same, which is one tensor of the file."""
        return self.join is only and all(each.is_replicate() for each in self.placements)

    def assembled(self, local: torch.Tensor) -> DTensor:
        """Return the tensor of which this rank has a shard."""
        return DTensor.from_local(
            local,
            self.mesh,
            self.placements,
            run_check=False,
            shape=torch.Size(self.shape),
            stride=strides_of(self.shape),
        )


def only(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the only tensor of a list."""
    (tensor,) = tensors
    return tensor


def place(
    name: str, shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]
) -> Placed:
    """Place a tensor of the file as it is."""
    needed = Slice(name, *shard(f"tensor {quoted(name)}", shape, mesh, placements))
    return Placed([needed], only, list(shape), mesh, list(placements))


def checked_placements(
    where: str, given: object, mesh: DeviceMesh, shape: Sequence[int]
) -> list[Placement]:
    """Return a placement for every dimension of a mesh, or raise an error that says ``where``."""
    placements = [given] if isinstance(given, Placement) else given
    if not isinstance(placements, Sequence) or isinstance(placements, str):
        raise TypeError(
            f"{where} is {kind_of(given)}, and must be a placement, a list of them, a "
            "ParallelStyle, Fused or Stacked"
        )
    checked: list[Placement] = []
    for each in placements:
        if not isinstance(each, Placement):
            raise TypeError(f"{where} has {kind_of(each)} in its list, and must have placements")
        if not isinstance(each, Shard | Replicate | _StridedShard):
            raise errors.InvalidArgument(
                f"{where} is {each!r}: tensors can be loaded as Shard or Replicate only"
            )
        if not isinstance(each, Replicate) and not -len(shape) <= each.dim < len(shape):
            raise errors.InvalidArgument(
                f"{where} has {each!r} for a tensor of the shape {list(shape)}"
            )
        checked.append(Shard(each.dim % len(shape)) if type(each) is Shard else each)
    if len(checked) != mesh.ndim:
        raise errors.InvalidArgument(
            f"{where} has {len(checked)} placements, and the mesh {mesh.ndim} dimensions"
        )
    return checked
