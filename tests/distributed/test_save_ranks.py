"""Saves by many ranks: one file, which is the same as if one process had saved it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.azure_server import Azure, azure_server
from local_servers.s3_server import S3, s3_server
from support.ranks import run_ranks
from tensorizer_ops import errors

# Tensors of all kinds, on a mesh and not. `full` is what one process would save.
TENSORS = """
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
generator = torch.Generator().manual_seed(5)
line = init_device_mesh("cpu", (size,))
square = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
plan = {
    "rows": ((1000, 1024), torch.float32, line, [Shard(0)]),
    "columns": ((777, 1000), torch.bfloat16, line, [Shard(1)]),
    "inner": ((5, 300, 301), torch.int16, line, [Shard(2)]),
    "middle": ((3, 33, 512), torch.complex128, line, [Shard(1)]),
    "two": ((501, 502), torch.float64, square, [Shard(0), Shard(1)]),
    "twice": ((130, 1000), torch.float8_e4m3fn, square, [Shard(0), Shard(0)]),
    "half": ((300, 1001), torch.bool, square, [Replicate(), Shard(1)]),
    "replicated": ((100, 100), torch.float32, line, [Replicate()]),
    "few": ((2, 70000), torch.uint8, line, [Shard(0)]),
    "plain": ((1 << 20,), torch.float32, None, None),
    "scalar": ((), torch.float64, None, None),
    "scalar on a mesh": ((), torch.int64, line, [Replicate()]),
    "empty": ((0, 4), torch.float32, line, [Shard(0)]),
    "empty columns": ((0, 4), torch.float32, line, [Shard(1)]),
    "empty rows": ((5, 0), torch.float32, line, [Shard(0)]),
    "a/long" + "g" * 200: ((3,), torch.complex64, line, [Shard(0)]),
}
full, tensors = {}, {}
for name, (shape, dtype, mesh, placements) in plan.items():
    data = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    if dtype is torch.bool:
        data %= 2
    full[name] = data.view(dtype).view(shape)
    tensors[name] = full[name]
    if mesh is not None:
        tensors[name] = distribute_tensor(full[name], mesh, placements, src_data_rank=None)
options = json.loads(given[1]) if len(given) > 1 else {}
hashes = options.pop("hashes", "chunked")
if given[0].endswith(".safetensors"):  # which has no such type
    del full["middle"], tensors["middle"]
"""

SAME = (
    TENSORS
    + """
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


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3]:
    with s3_server(tmp_path) as server:
        yield server


@pytest.fixture
def azure() -> Iterator[Azure]:
    with azure_server() as server:
        yield server


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
strange = {
    "transposed": DTensor.from_local(transposed, mesh["tp"], [Shard(1)], run_check=False),
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


# Each case is saved by all ranks, and all of them must say the same.
REFUSED = """
from torch.distributed.tensor import (
    DTensor, Partial, Shard, distribute_tensor, init_device_mesh)
from torch.distributed.tensor.placement_types import _StridedShard
mesh = init_device_mesh("cpu", (size,))
folder, whole = given[0], torch.arange(12.0).view(4, 3)
path = f"{folder}/old.tensors"
os.environ["MODEL_KEY"] = "ab" * 32
shard = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
texts = []
def refused(*given, save=distributed.save, **more):
    try:
        save(*given, **more)
    except Exception as error:
        texts.append([type(error).__name__, str(error)])
    else:
        texts.append(["nothing", ""])
partial = DTensor.from_local(torch.ones(3), mesh, [Partial()], run_check=False)
refused(path, {"p": partial})
refused(path, {"w": torch.ones(3 if rank else 4)})
refused(path, {"w": torch.ones(3).to_sparse()})
refused(path, {"w": torch.ones(3, device="meta")})
refused(path, {"w": [1.0]})
refused(path, shard)
refused(path, {"w": shard}, hashes="all")
refused(path, {"w": shard}, hashes="crc32" if rank else "chunked")
refused(path, {"w": shard}, options={"key": "env:MODEL_KEY"})
refused(path, {"w": shard}, options={"share": "true"})
refused(path, {"w": shard}, options={"max_shard_size": "100"})
refused(path, {"w": shard}, options={"digests": "true"})
refused(path, {"w": shard}, metadata={"a": 1})
refused(path, {"w": shard}, metadata={"step": str(rank), "of": "all"})
refused(path, {"w": shard}, metadata={"step": "1"} if rank else None)
refused(path, {"w": shard} if rank == 0 else {})
refused("redis://127.0.0.1:1/w", {"w": shard})
refused("http://127.0.0.1:1/w", {"w": shard})
refused("fd:1", {"w": shard})
refused("/dev/null", {"w": shard})
refused(folder, {"w": shard})
refused(f"{folder}/{rank}/a.tensors", {"w": shard})
refused(path, {"w" * 70000: shard})
# As many elements as the tensor has, and not all of them.
row, column = (DTensor.from_local(torch.ones(4, 4).narrow(dim, 0, 2), mesh, [Shard(dim)],
                                  run_check=False, shape=(4, 4), stride=(4, 1)) for dim in (0, 1))
refused(path, {"w": column if rank else row})
refused(path, {"w": DTensor.from_local(torch.ones(2, 2), mesh, [Shard(1)], run_check=False,
                                       shape=(2, 3), stride=(3, 1))})
refused(f"{folder}/{rank}.tensors", {"w": shard})
others = [dist.new_group([other]) for other in (1, 0)]
refused(path, {"w": shard}, group=others[rank])
refused(path, {"w": DTensor.from_local(torch.ones(2, 2), mesh, [_StridedShard(1, split_factor=2)],
                                       run_check=False, shape=(2, 4), stride=(4, 1))})
refused(path, save=distributed.load) if rank else refused(path, {"w": shard})
distributed.save(f"{folder}/new.tensors", {"w": shard})  # the group is as it was
report(texts)
"""


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.tensors").write_bytes(b"old")
    outcome = run_ranks(tmp_path / "ranks", REFUSED, tmp_path, count=2)
    expected = [
        ("InvalidArgument", "'p'.*Partial.*redistribute"),
        ("InvalidArgument", r"'w' is float32 \[3\] on rank 1, and float32 \[4\]"),
        ("InvalidArgument", "its layout is Sparse"),
        ("InvalidArgument", "meta device"),
        ("InvalidArgument", "'w' cannot be saved: it is list"),
        ("TypeError", "tensors is DTensor"),
        ("InvalidArgument", "hashes is 'all', and must be 'chunked', 'crc32' or 'none'"),
        ("InvalidArgument", "rank 1 saves another file to .*old.tensors"),
        ("InvalidArgument", "option 'key'"),
        ("InvalidArgument", "several processes cannot save names.*option 'share'"),
        ("InvalidArgument", "option 'max_shard_size'"),
        ("InvalidArgument", "SHA-256 of whole tensors"),
        ("TypeError", "metadata"),
        ("InvalidArgument", r"metadata\['step'\] is another text on rank 1 than on rank 0"),
        ("InvalidArgument", r"metadata\['step'\] is .* or on one of them only"),
        ("InvalidArgument", "'w' cannot be saved: it has 12 elements, and the parts of all.*6"),
        ("InvalidArgument", "redis://127.0.0.1:1/w.*several processes"),
        ("InvalidArgument", "http://127.0.0.1:1/w.*several processes"),
        ("InvalidArgument", "fd:1.*several processes"),
        ("InvalidArgument", "/dev/null.*several processes"),
        ("IsADirectory", "cannot save to"),
        ("NotFound", "this process does not see what another one has begun to save"),
        ("InvalidArgument", "name"),
        ("InvalidArgument", "'w'.*ranks 0 and 1 cut it in different ways"),
        ("InvalidArgument", r"this rank has \[2, 2\] of it, and .* of \[2, 3\] are \[2, 1\]"),
        ("InvalidArgument", "rank 1 saves another file to"),
        ("InvalidArgument", "rank [01] is not in the group"),
        ("InvalidArgument", "the shards of a rank are not one part"),
        ("InvalidArgument", "rank 1 calls distributed.load, and rank 0 distributed.save"),
    ]
    for rank, texts in enumerate(outcome.reports):
        assert len(texts) == len(expected)
        for (kind, text), (wanted, pattern) in zip(texts, expected, strict=True):
            assert kind == wanted, (rank, kind, text, pattern)
            assert re.search(pattern, text), (rank, text, pattern)
    assert (tmp_path / "old.tensors").read_bytes() == b"old"
    assert not any(name.startswith(".") for name in os.listdir(tmp_path))
    assert tensorizer_ops.load(tmp_path / "new.tensors", verify="all")["w"].shape == (4, 3)


# A disk that is full for one rank, at another place each time.
FULL = """
import resource
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
mesh = init_device_mesh("cpu", (size,))
whole = torch.ones(4000, 3000)
tensors = {"w": distribute_tensor(whole, mesh, [Shard(1)], src_data_rank=None)}
texts = []
for victim in range(size):
    for limit in (1, 20 << 20, 47 << 20):
        if rank == victim:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            distributed.save(given[0], tensors)
        except Exception as error:
            texts.append([victim, type(error).__name__, str(error)])
        else:
            texts.append([victim, "nothing", ""])
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        dist.barrier()  # the group can still be used
report(texts)
"""


def test_a_rank_whose_disk_is_full(tmp_path: Path) -> None:
    path = tmp_path / "a.tensors"
    path.write_bytes(b"old")
    outcome = run_ranks(tmp_path / "ranks", FULL, path, count=3)
    failed = 0
    for rank, texts in enumerate(outcome.reports):
        for victim, kind, text in texts:
            if kind != "nothing":
                failed += 1
                assert issubclass(getattr(errors, kind), OSError), text
                assert rank == victim or f"rank {victim}: " in text
    assert failed >= 3 * 6  # of a rank that writes nothing behind the limit, nothing fails
    assert sorted(os.listdir(tmp_path)) == ["a.tensors", "ranks"]


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
