"""Loads onto a device mesh: DTensors of which each rank reads its own shards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.web import nginx
from support.ranks import run_ranks

IMPORTS = """
from torch.distributed.tensor import (
    DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh)
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module)
from torch.distributed.fsdp import fully_shard
Fused, Stacked = distributed.Fused, distributed.Stacked
full = tensorizer_ops.load(given[0]) if given else {}

def same(ours, theirs):
    assert type(ours) is type(theirs), (type(ours), type(theirs))
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    assert ours.stride() == theirs.stride()
    if isinstance(theirs, DTensor):
        assert ours.placements == theirs.placements and ours.device_mesh == theirs.device_mesh
        ours, theirs = ours.to_local(), theirs.to_local()
        if ours.numel() == 0 == theirs.numel():
            return  # of which FSDP makes (0, 0), and torch otherwise (3, 0)
        assert ours.shape == theirs.shape
    assert torch.equal(ours, theirs)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(3)
    shapes = {
        "tok_embeddings.weight": (10, 6),
        "norm.weight": (6,),
        "odd": (3, 5, 7),  # of which some ranks have nothing
        "scalar": (),
        "empty": (0, 4),
    }
    for i in range(2):
        attention, experts = f"layers.{i}.attention", f"layers.{i}.experts"
        shapes |= {f"{attention}.{name}.weight": (8, 6) for name in ("q", "k", "v")}
        shapes |= {f"{attention}.q.bias": (8,), f"{attention}.o.weight": (6, 8)}
        shapes |= {f"{attention}.o.bias": (6,), f"layers.{i}.gate_up.weight": (16, 6)}
        shapes |= {f"{experts}.{e}.weight": (3, 4) for e in range(11)}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    path = tmp_path / "model.tensors"
    tensorizer_ops.save(path, tensors, hashes="chunked")
    return path


def run(tmp_path: Path, body: str, *given: object, count: int = 4) -> list[object]:
    outcome = run_ranks(tmp_path / "ranks", IMPORTS + body, *given, count=count)
    assert not any(outcome.statuses)
    return outcome.reports


PLACEMENTS = """
mesh = init_device_mesh("cpu", (size,))
plan = {
    "layers.*.attention.*.weight": Shard(0), "layers.*.attention.o.weight": [Shard(1)],
    "odd": Shard(-1), "empty": Shard(0), "scalar": Replicate(), "norm.weight": Replicate(),
}
loaded = distributed.load(given[0], mesh, plan, verify="all", dtype=getattr(torch, given[1]))
assert list(loaded) == list(full)
for name, tensor in full.items():
    tensor = tensor.to(getattr(torch, given[1]))
    placement = plan.get(name)
    if ".attention." in name and name.endswith("weight"):
        placement = Shard(0)  # the first entry that matches counts
    if placement is not None:
        tensor = distribute_tensor(tensor, mesh, [placement])
    same(loaded[name], tensor)
assert list(distributed.load(given[0], mesh, plan, names=["scalar", "odd"])) == ["scalar", "odd"]
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("count", [2, 4])
def test_shards_are_those_of_torch(tmp_path: Path, path: Path, count: int, dtype: str) -> None:
    run(tmp_path, PLACEMENTS, path, dtype, count=count)


TWO_DIMENSIONS = """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
plan = {"layers.0.attention.*.weight": [Shard(0), Shard(1)],
        "layers.1.attention.*.weight": [Replicate(), Shard(0)],
        "odd": [Shard(1), Shard(1)], "norm.weight": [Replicate(), Replicate()]}
loaded = distributed.load(given[0], mesh, plan)
for name in ("odd", "norm.weight"):
    same(loaded[name], distribute_tensor(full[name], mesh, plan[name]))
for key in ("layers.0.attention.q.weight", "layers.1.attention.q.weight"):
    same(loaded[key], distribute_tensor(full[key], mesh, plan[key.replace(".q.", ".*.")]))
assert not isinstance(loaded["scalar"], DTensor)
# A mesh of some ranks.
loaded = distributed.load(given[0], mesh["tp"], {"odd": Shard(2)}, names=["odd"])
same(loaded["odd"], distribute_tensor(full["odd"], mesh["tp"], [Shard(2)]))
"""


def test_a_mesh_of_two_dimensions(tmp_path: Path, path: Path) -> None:
    run(tmp_path, TWO_DIMENSIONS, path)


TURNED = """
from torch.distributed.device_mesh import DeviceMesh

mesh = DeviceMesh("cpu", [1, 0])
own = distribute_tensor(full["odd"], mesh, [Shard(0)])
for use in (
    lambda: distributed.load(given[0], mesh, {"odd": Shard(0)}),
    lambda: tensorizer_ops.attest({"odd": own}, given[0]),
):
    try:
        use()
    except ValueError as error:
        assert "whose ranks do not ascend" in str(error), error
    else:
        raise AssertionError("torch would give the shards to others")
"""


def test_a_mesh_whose_ranks_do_not_ascend(tmp_path: Path, path: Path) -> None:
    run(tmp_path, TURNED, path, count=2)


# What torch does with a module is done with the file: by the same plan, and by the module.
STYLES = """
class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(6, 8, bias=b) for b in (True, False, False))
        self.o = torch.nn.Linear(8, 6)

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = torch.nn.Embedding(10, 6)
        self.norm = torch.nn.RMSNorm(6)
        self.layers = torch.nn.ModuleList([Layer(), Layer()])

def plan():
    return {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate()), "norm": SequenceParallel(),
        "layers.*.attention.[qkv]": ColwiseParallel(), "layers.*.attention.o": RowwiseParallel(),
    }

mesh = init_device_mesh("cpu", (size,))
model = Model()
model.load_state_dict({name: full[name] for name in model.state_dict()})
parallelize_module(model, mesh, plan())
wanted = model.state_dict()
assert any(isinstance(tensor, DTensor) for tensor in wanted.values())
loaded = distributed.load(given[0], mesh, plan(), names=list(wanted))
for name, tensor in wanted.items():
    same(loaded[name], tensor)

with torch.device("meta"):
    empty = Model()
parallelize_module(empty, mesh, plan())
loaded = distributed.load(given[0], mesh, empty, names=list(wanted))
empty.load_state_dict(loaded, assign=True)
for name, tensor in empty.state_dict().items():
    same(tensor, wanted[name])

# Sharded by FSDP beside tensor parallelism.
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
models = [Model(), Model()]
models[0].load_state_dict({name: full[name] for name in wanted})
for each in models:
    parallelize_module(each, mesh["tp"], plan())
    for layer in each.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(each, mesh=mesh["dp"])
loaded = distributed.load(given[0], mesh, models[1], names=list(wanted))
for name, tensor in models[0].state_dict().items():
    same(loaded[name], tensor)
"""


def test_plans_and_modules_of_torch(tmp_path: Path, path: Path) -> None:
    run(tmp_path, STYLES, path)


# FSDP cuts what tensor parallelism has cut, and neither comes out even.
UNEVEN = """
mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
layers = [torch.nn.Linear(rows, 5) for rows in range(1, 14)]
layers += [torch.nn.Linear(5, rows) for rows in range(1, 14)]
for i, layer in enumerate(layers):
    count = layer.weight.numel()
    layer.weight.data = torch.arange(count * 1.0).view_as(layer.weight) + 1000 * i
    torch.nn.init.constant_(layer.bias, i)
    style = RowwiseParallel() if i < 13 else ColwiseParallel()
    fully_shard(parallelize_module(layer, mesh["tp"], style), mesh=mesh["dp"])
model = torch.nn.ModuleList(layers)
wanted = model.state_dict()
assert any("Strided" in type(each).__name__ for t in wanted.values() for each in t.placements)
for name, tensor in distributed.load(given[0], mesh, model).items():
    same(tensor, wanted[name])
distributed.save(given[1], wanted)
"""


@pytest.mark.parametrize("count", [4, 6])
def test_uneven_shards_of_fsdp_and_tensor_parallelism(tmp_path: Path, count: int) -> None:
    """A save, which must be what one process has, and a load, which must be what FSDP has."""
    shapes = [(5, rows) for rows in range(1, 14)] + [(rows, 5) for rows in range(1, 14)]
    whole = {}
    for i, shape in enumerate(shapes):
        whole[f"{i}.weight"] = torch.arange(shape[0] * shape[1] * 1.0).view(shape) + 1000 * i
        whole[f"{i}.bias"] = torch.full((shape[0],), float(i))
    file, saved = tmp_path / "model.tensors", tmp_path / "saved.tensors"
    tensorizer_ops.save(file, whole, hashes="chunked")
    run(tmp_path, UNEVEN, file, saved, count=count)
    assert file.read_bytes() == saved.read_bytes()


MADE = """
mesh = init_device_mesh("cpu", (size,))
loaded = distributed.load(given[0], mesh, {
    "layers.*.attention.qkv": Fused(*(f"layers.*.attention.{n}.weight" for n in "qkv")),
    "layers.*.gate_up": Fused(
        ("layers.*.gate_up.weight", slice(0, 8)), ("layers.*.gate_up.weight", slice(8, None))),
    "layers.0.experts": Stacked("layers.0.experts.{}.weight"),
    "layers.1.experts": Stacked("layers.1.experts.{}.weight", order=[10, 0, 10]),
})
assert not any(".q.weight" in name or ".experts." in name for name in loaded)
assert "layers.0.attention.q.bias" in loaded
for i in range(2):
    parts = [full[f"layers.{i}.attention.{n}.weight"].chunk(size)[rank] for n in "qkv"]
    qkv = loaded[f"layers.{i}.attention.qkv"]
    assert qkv.shape == (24, 6) and torch.equal(qkv.to_local(), torch.cat(parts))
    halves = full[f"layers.{i}.gate_up.weight"].chunk(2)
    parts = [half.chunk(size)[rank] for half in halves]
    assert torch.equal(loaded[f"layers.{i}.gate_up"].to_local(), torch.cat(parts))
    order = [10, 0, 10] if i else range(11)
    stack = torch.stack([full[f"layers.{i}.experts.{e}.weight"] for e in order])
    same(loaded[f"layers.{i}.experts"], distribute_tensor(stack, mesh, [Shard(0)]))
"""


def test_tensors_that_the_plan_makes(tmp_path: Path, path: Path) -> None:
    run(tmp_path, MADE, path)


# A server counts what 4 ranks read of 32 MB that are cut by columns.
TRAFFIC = """
mesh = init_device_mesh("cpu", (size,))
loaded = distributed.load(given[0], mesh, {"w": Shard(int(given[1]))}, verify=given[2])
report(loaded["w"].to_local().sum().item())
"""


# Verified, a shard is read with all of the chunks that it has a part of.
@pytest.mark.parametrize(("dim", "verify"), [(0, "all"), (1, "none")])
def test_each_rank_reads_its_own_bytes(tmp_path: Path, dim: int, verify: str) -> None:
    with nginx(tmp_path) as web:
        weight = torch.arange(4_000_000).view(4, 1_000_000)
        file = web.root / "model.tensors"
        tensorizer_ops.save(file, {"w": weight}, hashes="chunked")
        os.utime(file, (1e9, 1e9))  # the beginning of a new file is read again, to see it unchanged
        web.requests()
        url = web.url("model.tensors")
        outcome = run_ranks(
            tmp_path / "ranks", IMPORTS.replace("if given", "if 0") + TRAFFIC, url, dim, verify
        )
        sums = [part.sum().item() for part in weight.chunk(4, dim)]
        assert outcome.reports == sums
        sent = sum(int(line.split('"')[2].split()[-1]) for line in web.requests())
        assert 0 <= sent - file.stat().st_size < 4 * (3 << 20)


REFUSALS = """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
one = mesh["tp"]
layer = torch.nn.ModuleDict({"norm": torch.nn.Linear(6, 2)})
weights = [f"layers.*.attention.{n}.weight" for n in "qkv"]
for text, mesh_, plan in (
    ("plan['none.*']: the file has no tensor 'none.*'", one, {"none.*": Shard(0)}),
    ("has Shard(dim=3) for a tensor of the shape [3, 5, 7]", one, {"odd": Shard(3)}),
    ("can be loaded as Shard or Replicate only", one, {"odd": Partial()}),
    ("has 1 placements, and the mesh 2 dimensions", mesh, {"odd": Shard(0)}),
    ("plan['odd'] is int, and must be a placement", one, {"odd": 3}),
    ("plan['odd'] has int in its list", one, {"odd": [3]}),
    ("mesh more than one dimension", mesh, {"norm": SequenceParallel()}),
    ("has the shape [2, 6] in the module, and [6] in", one,
     parallelize_module(layer, one, {"norm": ColwiseParallel()})),
    ("no tensor 'nothing'", one, {"x": Fused("norm.weight", "nothing")}),
    ("must have as many * as the source", one, {"x": Fused(*weights)}),
    ("has no rows slice(0, 6, 3)", one, {"x": Fused(("norm.weight", slice(0, 6, 3)))}),
    ("has no rows slice(0, 99, None)", one, {"x": Fused(("norm.weight", slice(0, 99)))}),
    ("'none.{}', with a number in place of {}", one, {"x": Stacked("none.{}")}),
    ("plan has a key that is int", one, {3: Shard(0)}),
    ("a module without DTensors", one, torch.nn.Linear(2, 2)),
    ("(float32[6, 8]) cannot be fused with", one,
     {"layers.*.x": Fused(weights[0], "layers.*.attention.o.weight")}),
    ("cannot be divided evenly among 2 ranks", one, {"x": Fused("odd")}),
    ("has dim=1, and tensor 'norm.weight' the shape [6]", one, {"x": Fused("norm.weight", dim=1)}),
    ("'layers.0.experts.99.weight'", one,
     {"x": Stacked("layers.0.experts.{}.weight", order=[99])}),
    ("which the file has itself", one, {"odd": Fused("norm.weight")}),
):
    try:
        distributed.load(given[0], mesh_, plan)
    except (ValueError, KeyError, TypeError) as error:
        assert text in str(error), (text, str(error))
    else:
        assert False, text
for call in (
    lambda: distributed.load(given[0], None, {"odd": Shard(0)}),
    lambda: distributed.load(given[0], one, {"x": Fused("norm.weight")}, names=["norm.weight"]),
    lambda: distributed.load(given[0], one, {"odd": Shard(0)}, device="meta"),
    lambda: Stacked("no number"),
    lambda: Fused(),
):
    try:
        call()
    except (ValueError, KeyError):
        continue
    assert False
# A name in a file may be a secret that its server was sent.
try:
    tensorizer_ops.load("http://127.0.0.1:1/m", options={"header.Key": "experts.10", "retries": 0})
except ConnectionError:
    pass
try:
    distributed.load(given[0], one, {"x": Fused(("layers.0.experts.10.weight", slice(0, 99)))})
except ValueError as error:
    assert "'layers.0.....weight' (float32[3, 4]) has no rows" in str(error), str(error)
else:
    assert False
# The group can be used on.
assert distributed.load(given[0], one, {"odd": Shard(0)})["odd"].shape == (3, 5, 7)
"""


def test_plans_that_do_not_fit(tmp_path: Path, path: Path) -> None:
    run(tmp_path, REFUSALS, path)


DIFFERENT = """
mesh = init_device_mesh("cpu", (size,))
try:
    distributed.load(given[0], mesh, {"odd": Shard(rank)})
except ValueError as error:
    report(str(error))
"""


def test_ranks_with_different_plans(tmp_path: Path, path: Path) -> None:
    reports = run(tmp_path, DIFFERENT, path, count=2)
    assert all("rank 1 loads something else" in str(report) for report in reports)


DAMAGED = """
mesh = init_device_mesh("cpu", (size,))
try:
    distributed.load(given[0], mesh, {"odd": Shard(0)}, names=["odd"], verify="all")
except Exception as error:
    report([type(error).__name__, str(error)])
dist.barrier()
"""


def test_a_damaged_shard_fails_all_ranks(tmp_path: Path) -> None:
    path = tmp_path / "model.tensors"
    tensorizer_ops.save(path, {"odd": torch.ones(3, 1 << 20)}, hashes="chunked")
    data = bytearray(path.read_bytes())
    data[-(1 << 20)] ^= 1
    path.write_bytes(data)
    reports = run(tmp_path, DAMAGED, path, count=3)
    for rank, (kind, text) in enumerate(reports):
        assert kind == "HashMismatch" and text.startswith("rank 2: ") == (rank != 2)
