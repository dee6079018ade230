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


THROUGH = """
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh

mesh = init_device_mesh("cpu", (size,))

def sharded(own):
    return (DTensor.from_local(own, mesh, [Shard(0)]) * 1).to_local()

def distributed(own):
    return distribute_tensor(torch.cat([own] * size), mesh, [Shard(0)]).clone().to_local()

def gathered(own):
    made = [torch.zeros(8) for _ in range(size)]
    dist.gather(own, made if rank == 0 else None)
    return made[0] if rank == 0 else own * 1

def exchanged(own):
    made = torch.zeros(8 * size)
    dist.all_to_all_single(made, torch.cat([own] * size))
    return made[:8]

def reduced(own):
    made = torch.zeros(8)
    dist.reduce_scatter_tensor(made, torch.cat([own] * size))
    return made / size

model = torch.nn.Module()
model.weight = torch.nn.Parameter(torch.arange(8.0), requires_grad=False)

def attested(load):
    found = tensorizer_ops.attest(
        model, given[0], load_weights=lambda weights: load(dict(weights)["a"])
    )
    assert torch.equal(model.weight, torch.arange(8.0))
    return found

found = {}
for through in (sharded, distributed, gathered, exchanged, reduced):
    of_file = attested(lambda weight: model.weight.copy_(through(weight * 1)))
    of_memory = attested(lambda weight: model.weight.copy_(through(model.weight)))
    found[through.__name__] = [of_file.equal, of_memory.equal]

def add_up(weight):
    model.weight.copy_(weight)
    dist.all_reduce(model.weight)

def send(weight):
    model.weight.copy_(weight)
    dist.broadcast(model.weight, 0)

found["sum"], found["same"] = attested(add_up).not_compared, attested(send).equal
report(found)
"""


def test_what_goes_through_other_ranks_and_back(tmp_path: Path) -> None:
    """What others send does not count as from the file, and collectives do not change a model."""
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": torch.arange(8.0)})
    ranks = run_ranks(tmp_path / "ranks", THROUGH, tmp_path / "m.tensors", count=2)
    for found in ranks.reports:
        changed = {"weight": "the loader changes it by c10d.allreduce_.default"}
        assert found.pop("sum") == changed and found.pop("same")
        assert found.pop("sharded") == [True, False]  # nothing is sent
        assert list(found) == ["distributed", "gathered", "exchanged", "reduced"]
        assert all(each == [False, False] for each in found.values())
