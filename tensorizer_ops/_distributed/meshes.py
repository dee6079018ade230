"""The groups and devices of device meshes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import wrong
from tensorizer_ops._base.devices import named_device


def given_group(
    given: object, wanted: str = "ProcessGroup, DeviceMesh or None"
) -> dist.ProcessGroup | None:
    """Return the group that a caller means; ``None`` is the group of all ranks there are."""
    if isinstance(given, DeviceMesh):
        return group_of(given)
    if given is None or isinstance(given, dist.ProcessGroup):
        return given
    if given is dist.GroupMember.NON_GROUP_MEMBER:
        raise errors.InvalidArgument(
            f"rank {dist.get_rank()} is not in the group: its ranks make this call, and no others"
        )
    raise wrong("group", given, wanted)


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
