"""`attest` of tensors of which each rank has a part."""

from __future__ import annotations

from pathlib import Path

import torch

import tensorizer_ops
from support.ranks import run_ranks
from support.samples import sample

PARTS = """
from torch.distributed.tensor import (
    DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
)
import tensorizer_ops

mesh = init_device_mesh("cpu", (size,))
full = tensorizer_ops.load(given[0])
placements = {"rows": Shard(0), "columns": Shard(1), "all": Replicate(), "few": Shard(0)}
tensors = {name: distribute_tensor(full[name], mesh, [place]) for name, place in placements.items()}
found = [tensorizer_ops.attest(tensors, given[0])]
if rank == 1:
    tensors["rows"].to_local()[3, 5] = 3
    tensors["columns"].to_local()[900, 7] = 3
found.append(tensorizer_ops.attest(tensors, given[0]))
partial = {"all": DTensor.from_local(full["all"], mesh, [Partial()])}
try:
    refused = tensorizer_ops.attest(partial, given[0]).equal
except ValueError as error:
    refused = str(error)
found = [[each.equal, each.compared, each.different, each.not_compared] for each in found]
report([*found, refused])
"""


def test_each_rank_compares_its_part(tmp_path: Path) -> None:
    names = ["rows", "columns", "all"]
    tensors = {name: sample(torch.float32, (1001, 700), i) for i, name in enumerate(names)}
    tensors["few"] = sample(torch.float32, (3,), 3)  # one rank has none of it
    tensorizer_ops.save(tmp_path / "m.tensors", tensors)
    ranks = run_ranks(tmp_path / "ranks", PARTS, tmp_path / "m.tensors")
    for rank, (before, after, refused) in enumerate(ranks.reports):
        assert before == [True, [*names, "few"], {}, {}]
        text = "element {} is not that of the file"
        places = {"rows": [3, 5], "columns": [900, 7]} if rank == 1 else {}
        assert after[2] == {name: text.format(place) for name, place in places.items()}
        assert after[0] == (rank != 1) and not after[3]
        assert "tensor 'all' cannot be compared: its placements are (Partial(sum),)" in refused
