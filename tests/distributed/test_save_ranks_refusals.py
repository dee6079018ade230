"""What many ranks cannot save: all of them say why, and the target stays as it was."""

from __future__ import annotations

import os
import re
from pathlib import Path

import tensorizer_ops
from support.ranks import run_ranks
from tensorizer_ops import errors

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
refused(path, {"w": shard}, metadata={"a": [1]})
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
        ("InvalidArgument", "'w' cannot be saved: it has 12 elements, and the shards of all.*6"),
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
