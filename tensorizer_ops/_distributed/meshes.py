"""The groups and devices of device meshes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from tensorizer_ops import errors
from tensorizer_ops._base.devices import named_device


def group_of(mesh: DeviceMesh) -> dist.ProcessGroup | None:
    """Return a group of all ranks of a mesh; ``None`` is the group of all ranks there are."""
    if mesh.get_coordinate() is None:
        raise errors.InvalidArgument(f"rank {dist.get_rank()} is not in {mesh}")
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.size() == dist.get_world_size():
        return None
    return mesh._flatten().get_group()


def device_of(mesh: DeviceMesh, device: torch.device | str | int | None) -> torch.device:
    """Return the device of this rank's shards."""
    if device is None:
        return torch.device(mesh.device_type)
    given = named_device(device)
    if given.type != mesh.device_type:
        raise errors.InvalidArgument(f"device is {given}, and the mesh is of {mesh.device_type}")
    return given
