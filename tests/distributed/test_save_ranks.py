"""Saves by many ranks: one file, which is the same as if one process had saved it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.azure_server import Azure
from local_servers.s3_server import S3
from support.ranks import TENSORS, run_ranks
from tensorizer_ops import errors

SAME = (
    TENSORS
    + """
options = json.loads(given[1]) if len(given) > 1 else {}
hashes = options.pop("hashes", "chunked")
if given[0].endswith(".safetensors"):  # which has no such type
    del full["middle"], tensors["middle"]
distributed.save(given[0], tensors, hashes=hashes, options=options, metadata={"of": "all"})
if rank == 0:
    one = given[0].replace("all.", "one.")
    tensorizer_ops.save(one, full, hashes=hashes, options=options, metadata={"of": "all"})
"""
)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("all.tensors", {}),
        ("all.tensors", {"hashes": "crc32", "memory_ceiling": "4194304"}),
        ("all.tensors", {"hashes": "none", "fsync": "true"}),
        ("all.tensors", {"digest_chunk": "16777216"}),
        ("all.tensors", {"digest_chunk": "65536", "memory_ceiling": "1048576"}),
        ("all.safetensors", {}),
    ],
)
def test_the_file_is_that_of_one_process(
    tmp_path: Path, name: str, options: dict[str, str], count: int
) -> None:
    run_ranks(tmp_path / "ranks", SAME, tmp_path / name, json.dumps(options), count=count)
    path, one = tmp_path / name, tmp_path / name.replace("all.", "one.")
    assert path.read_bytes() == one.read_bytes()
    assert path.stat().st_mode == one.stat().st_mode
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, one.name, "ranks"])


# Three tensors of more than a part of an upload (8 MiB) or less.
PARTS = """
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
mesh = init_device_mesh("cpu", (size,))
rows = int(given[2])
full = {str(i): (torch.arange(rows * 1000) + i).float().view(rows, 1000) for i in range(3)}
shards = {name: distribute_tensor(tensor, mesh, [Shard(int(name) % 2)], src_data_rank=None)
          for name, tensor in full.items()}
"""


@pytest.mark.parametrize("place", ["s3", "azure"])
@pytest.mark.parametrize("rows", [3000, 30])
def test_the_object_is_that_of_one_process(
    tmp_path: Path, request: pytest.FixtureRequest, place: str, rows: int
) -> None:
    server: S3 | Azure = request.getfixturevalue(place)
    code = PARTS + "distributed.save(given[0], shards, options=json.loads(given[1]))"
    run_ranks(tmp_path / "ranks", code, server.uri("m"), json.dumps(server.options()), rows)
    full = {str(i): (torch.arange(rows * 1000) + i).float().view(rows, 1000) for i in range(3)}
    tensorizer_ops.save(tmp_path / "one.tensors", full, hashes="chunked")
    assert server.stored("m") == (tmp_path / "one.tensors").read_bytes()
    assert server.uploads() == []


# Ranks with other tensors, shards that are not contiguous, a group of some ranks, a mesh of these.
OTHERS = """
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh
group = dist.new_group([1, 3])
folder = given[0]
stages = {f"layer.{rank}.weight": torch.full((3, 5), float(rank)), "shared": torch.ones(4)}
distributed.save(f"{folder}/stages.tensors", stages, hashes="crc32")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
square = torch.arange(7000.0).view(70, 100)
shard = distribute_tensor(square, mesh["tp"], [Shard(1)], src_data_rank=None).to_local()
transposed = shard.t().contiguous().t()
assert not transposed.is_contiguous()
element = square[:1, rank % 2]
assert element.is_contiguous() and element.stride() == (100,)
strange = {
    "transposed": DTensor.from_local(transposed, mesh["tp"], [Shard(1)], run_check=False),
    "one each": DTensor.from_local(element, mesh["tp"], [Shard(0)], run_check=False),
    "every other": square[::2, ::3], "conjugate": torch.complex(square, square).conj(),
    "parameter": torch.nn.Parameter(square)}
distributed.save(f"{folder}/strange.tensors", strange, mesh)
column = mesh["dp"]  # ranks 0 and 2, or 1 and 3
distributed.save(f"{folder}/column{rank % 2}.tensors",
                 {"a": distribute_tensor(square, column, [Shard(0)], src_data_rank=None)}, column)
if rank in (1, 3):
    distributed.save(f"{folder}/some.tensors", {"from": torch.tensor([1.0])}, group)
"""


def test_ranks_that_have_other_tensors(tmp_path: Path) -> None:
    run_ranks(tmp_path / "ranks", OTHERS, tmp_path)
    stages = tensorizer_ops.load(tmp_path / "stages.tensors", verify="crc32")
    assert list(stages) == ["layer.0.weight", "shared", *(f"layer.{i}.weight" for i in (1, 2, 3))]
    for i in range(4):
        assert torch.equal(stages[f"layer.{i}.weight"], torch.full((3, 5), float(i)))
    square = torch.arange(7000.0).view(70, 100)
    strange = tensorizer_ops.load(tmp_path / "strange.tensors", verify="all")
    assert torch.equal(strange["transposed"], square)
    assert torch.equal(strange["one each"], square[0, :2])
    assert torch.equal(strange["every other"], square[::2, ::3])
    assert torch.equal(strange["conjugate"], torch.complex(square, -square))
    assert torch.equal(strange["parameter"], square)
    for name in ("column0", "column1"):
        loaded = tensorizer_ops.load(tmp_path / f"{name}.tensors", verify="all")
        assert torch.equal(loaded["a"], square)
    assert tensorizer_ops.load(tmp_path / "some.tensors")["from"] == 1


def test_one_process_saves_alone(tmp_path: Path) -> None:
    tensorizer_ops.distributed.save(tmp_path / "a.tensors", {"w": torch.ones(3)})
    tensorizer_ops.save(tmp_path / "b.tensors", {"w": torch.ones(3)}, hashes="chunked")
    assert (tmp_path / "a.tensors").read_bytes() == (tmp_path / "b.tensors").read_bytes()


# How many bytes a rank sends, and how much memory it takes at most.
COST = """
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from tensorizer_ops._distributed.peers import Peers
mesh = init_device_mesh("cpu", (size,))
rows, exchange, sent = 1 << 25, Peers.exchange, []
def counting(self, into, out, *sizes):
    sent.append(out.numel())
    return exchange(self, into, out, *sizes)
Peers.exchange = counting
local = torch.full((rows // size,) if given[1] == "0" else (64, rows // 64 // size), float(rank))
tensors = {"w": DTensor.from_local(local, mesh, [Shard(int(given[1]))], run_check=False)}
distributed.save(given[0] + ".warm", {"w": torch.ones(1)})
sent.clear()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
open("/proc/self/clear_refs", "w").write("5")
before = resident()
distributed.save(given[0], tensors)
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
report([sum(sent), int(peak.split()[1]) * 1024 - before])
"""


@pytest.mark.parametrize("dim", [0, 1])
def test_what_it_sends_and_takes(tmp_path: Path, dim: int) -> None:
    """128 MiB: rows are written where they are, and columns are exchanged, but never gathered."""
    size = 128 << 20
    outcome = run_ranks(tmp_path / "ranks", COST, tmp_path / "a.tensors", dim, count=2)
    loaded = tensorizer_ops.load(tmp_path / "a.tensors", verify="all")["w"]
    assert all(half.unique().tolist() == [i] for i, half in enumerate(loaded.chunk(2, dim)))
    for sent, memory in outcome.reports:
        assert sent < (size / 100 if dim == 0 else size * 0.26), sent
        assert memory < 56 << 20, memory


# A rank ends at a random moment. The others must end, too.
KILLED = (
    PARTS
    + """
distributed.save(given[0] + ".warm", {"a": torch.ones(1)}, options=json.loads(given[1]))
dist.barrier()
start = time.monotonic()
if rank == int(given[3]):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, float(given[4]))
try:
    distributed.save(given[0], shards, options=json.loads(given[1]))
except Exception as error:
    report([type(error).__name__, str(error), time.monotonic() - start])
else:
    report(None)
os._exit(0)
"""
)


@pytest.mark.parametrize("place", ["file", "s3"])
def test_a_rank_that_is_killed_at_any_moment(tmp_path: Path, s3: S3, place: str) -> None:
    folder = s3.root / "bucket" if place == "s3" else tmp_path / "folder"
    folder.mkdir(exist_ok=True)
    uri = "s3://bucket/a.tensors" if place == "s3" else folder / "a.tensors"
    options = s3.options() if place == "s3" else {}
    old = {"old": torch.ones(5)}
    tensorizer_ops.save(uri, old, options=options)
    ended_early = 0
    for moment in range(12 if place == "file" else 8):
        victim = moment % 3
        arguments = (uri, json.dumps(options), 1200, victim, 0.001 + moment * 0.01)
        keeper = 0 if moment % 2 else None
        outcome = run_ranks(tmp_path / str(moment), KILLED, *arguments, count=3, keeper=keeper)
        s3.settle()
        if outcome.statuses[victim] == 0:
            continue
        ended_early += 1
        for report in outcome.reports:
            if report is not None:
                kind, text, took = report
                assert issubclass(getattr(errors, kind), ConnectionError), text
                assert took < 20, (moment, text)
        loaded = tensorizer_ops.load(uri, options=options, verify="crc32")
        assert sorted(loaded) in (["old"], ["0", "1", "2"])
        for left in folder.glob(".tensorizer*"):
            assert victim == 0, moment  # which makes the file before it says so
            left.unlink()
        if sorted(loaded) != ["old"]:
            tensorizer_ops.save(uri, old, options=options)
    assert ended_early > 1  # how many depends on the machine's speed
