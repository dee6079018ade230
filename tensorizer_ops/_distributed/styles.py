"""Applies plans of ``parallelize_module`` to tensors of which only names and shapes are known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement
from torch.distributed.tensor.parallel import parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from tensorizer_ops import errors

# An embedding is told from a linear layer by its name, because their weights look alike.
_EMBEDDING = re.compile(r"emb|wte|wpe", re.IGNORECASE)


def placements_of_styles(
    styles: Mapping[str, ParallelStyle], mesh: DeviceMesh, shapes: Mapping[str, Sequence[int]]
) -> dict[str, Sequence[Placement]]:
    """Return the placements that torch gives to the parameters of these names."""
    if not styles:
        return {}
    if mesh.ndim != 1:
        raise errors.InvalidArgument(
            "plan has a ParallelStyle, and the mesh more than one dimension: give one of them, "
            'such as mesh["tp"]'
        )
    model = parallelize_module(_skeleton(shapes), mesh, dict(styles))
    return {
        name: parameter.placements
        for name, parameter in model.named_parameters()
        if isinstance(parameter, DTensor)
    }


def _skeleton(shapes: Mapping[str, Sequence[int]]) -> torch.nn.Module:
    """Return a module without memory that has parameters of these names."""
    members: dict[str, dict[str, Sequence[int]]] = {}
    for name, shape in shapes.items():
        path, _, last = name.rpartition(".")
        members.setdefault(path, {})[last] = shape
    root = _module("", members.get("", {}))
    for path in sorted(members.keys() - {""}):
        parent = root
        *above, own = path.split(".")
        for step in above:
            if step not in parent._modules:
                parent.add_module(step, torch.nn.Module())
            parent = parent.get_submodule(step)
        parent.add_module(own, _module(own, members[path]))
    return root


def _module(name: str, members: Mapping[str, Sequence[int]]) -> torch.nn.Module:
    module: torch.nn.Module
    if len(members.get("weight", ())) != 2:
        module = torch.nn.Module()
    elif _EMBEDDING.search(name):
        count, size = members["weight"]
        module = torch.nn.Embedding(count, size, device="meta")
    else:
        out, into = members["weight"]
        module = torch.nn.Linear(into, out, bias="bias" in members, device="meta")
    for member, shape in members.items():
        parameter = torch.nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False)
        module.register_parameter(member, parameter)
    return module
