"""Plans: which tensors a load puts on a device mesh, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel.style import ParallelStyle

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import kind_of
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._distributed.made import Fused, Stacked, matching
from tensorizer_ops._distributed.placed import (
    Placed,
    Placements,
    Stored,
    checked_placements,
    place,
)
from tensorizer_ops._distributed.styles import placements_of_styles

Plan: TypeAlias = Mapping[str, Placements | ParallelStyle | Fused | Stacked] | torch.nn.Module


def resolve(plan: Plan, mesh: DeviceMesh, stored: Mapping[str, Stored]) -> dict[str, Placed | None]:
    """Return what to load: the tensors of the file, and those that the plan makes of them.

    Tensors that the plan does not mention are ``None``: they are not on the mesh.
    """
    placed: dict[str, Placed | None] = dict.fromkeys(stored)
    if isinstance(plan, torch.nn.Module):
        placed.update(_as_in_module(plan, stored))
        return placed
    for key in plan:
        if not isinstance(key, str):
            raise TypeError(f"plan has a key that is {kind_of(key)}, and must be str")
    shapes = {name: one.shape for name, one in stored.items()}
    styles = {key: value for key, value in plan.items() if isinstance(value, ParallelStyle)}
    for name, placements in placements_of_styles(styles, mesh, shapes).items():
        placed[name] = place(name, shapes[name], mesh, placements)
    made: dict[str, Placed | None] = {}
    used: set[str] = set()
    # The first entry that matches a name counts.
    for key, value in reversed(list(plan.items())):
        if isinstance(value, Fused | Stacked):
            for name, one, sources in value._made(key, mesh, stored):
                made[name] = one
                used.update(sources)
        elif not isinstance(value, ParallelStyle):
            where = f"plan[{key!r}]"
            for names in matching(where, key, stored).values():
                for name in names:
                    checked = checked_placements(where, value, mesh, shapes[name])
                    placed[name] = place(name, shapes[name], mesh, checked)
    left = {name: one for name, one in placed.items() if name not in used}
    if both := left.keys() & made.keys():
        raise errors.InvalidArgument(f"plan makes {quoted(min(both))}, which the file has itself")
    return {**left, **made}


def _as_in_module(
    module: torch.nn.Module, stored: Mapping[str, Stored]
) -> Iterator[tuple[str, Placed]]:
    """Yield the tensors that torch has put on a mesh in a module."""
    state = module.state_dict(keep_vars=True)
    if not any(isinstance(tensor, DTensor) for tensor in state.values()):
        raise errors.InvalidArgument("plan is a module without DTensors: torch has not divided it")
    for name, tensor in state.items():
        if not isinstance(tensor, DTensor) or name not in stored:
            continue
        shape = stored[name].shape
        if list(tensor.shape) != shape:
            raise errors.InvalidArgument(
                f"tensor {quoted(name)} has the shape {list(tensor.shape)} in the module, and "
                f"{shape} in the file"
            )
        yield name, place(name, shape, tensor.device_mesh, tensor.placements)
