"""``checkpoint.consolidate``: what many ranks have saved, in files for one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint

import tensorizer_ops
from local_servers.s3_server import s3_server
from support.command import run
from support.folders import save_folder
from support.process import fork_python
from support.ranks import run_ranks
from support.samples import assert_same, flip
from tensorizer_ops import checkpoint, errors
from tensorizer_ops._dcp import consolidated

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

STATE = """
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from tensorizer_ops import checkpoint

def state_of(mesh=None):
    whole = torch.arange(24.0 * 1000).view(8, 3000)
    def on(dim, tensor):
        return distribute_tensor(tensor, mesh, [Shard(dim)]) if mesh else tensor
    return {
        "model": {"rows": on(0, whole), "columns": on(1, whole.half() * 3), "b": torch.ones(3)},
        "optimizer": {"state": {0: {"step": 3, "moment": torch.full((2,), 0.5)}, 1: {}},
                      "param_groups": [{"lr": 0.1, "params": [0, 1]}]},
        "step": 7, "none": None, "": {},
    }
"""
exec(STATE)
state_of: Any = globals()["state_of"]

SAVE = f"""
{STATE}
mesh = init_device_mesh("cpu", (size,))
checkpoint.save(given[0], state_of(mesh), metadata={{"by": "me"}}, options=json.loads(given[1]))
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    run_ranks(tmp_path / "ranks", SAVE, tmp_path / "run", "{}", count=3)
    return tmp_path / "run"


def model() -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = state_of()["model"]
    return dict(sorted(found.items()))


def sorted_load(place: Path | str, **how: Any) -> dict[str, torch.Tensor]:
    return dict(sorted(tensorizer_ops.load(place, verify="all", **how).items()))


def test_one_file_is_what_one_process_saves(ranks: Path, tmp_path: Path) -> None:
    seen = []
    one, alone = tmp_path / "one.tensors", tmp_path / "alone.tensors"
    checkpoint.consolidate(ranks, one, progress=lambda *both: seen.append(both))
    checkpoint.save(alone, state_of(), metadata={"by": "me"})
    assert sorted(tensorizer_ops.names(one)) == sorted(tensorizer_ops.names(alone))
    assert tensorizer_ops.digest(one) == tensorizer_ops.digest(alone)
    assert tensorizer_ops.metadata(one).keys() == tensorizer_ops.metadata(alone).keys()
    found, wanted = checkpoint.load(one, verify="all"), state_of()
    assert_same(found["model"], wanted["model"])
    moment = found["optimizer"]["state"][0].pop("moment")
    assert torch.equal(moment, wanted["optimizer"]["state"][0].pop("moment"))
    for state in (found, wanted):
        del state["model"]
    assert found == wanted and list(found["optimizer"]["state"]) == [0, 1]
    total = 8 * 3000 * 6 + 3 * 4 + 2 * 4
    assert seen[0] == (0, total) and seen[-1] == (total, total)
    state = state_of()
    state["model"] = {name: torch.zeros_like(tensor) for name, tensor in state["model"].items()}
    assert_same(checkpoint.load(one, state)["model"], state_of()["model"])


def test_the_model_alone(ranks: Path, tmp_path: Path) -> None:
    for name in ("m.tensors", "m.safetensors"):
        checkpoint.consolidate(ranks, tmp_path / name, prefix="model.", hashes="all")
        assert_same(sorted_load(tmp_path / name), model())
    assert tensorizer_ops.metadata(tmp_path / "m.safetensors") == {"format": "pt", "by": "me"}
    checkpoint.consolidate(ranks, tmp_path / "all.safetensors")
    assert "optimizer.state.0.moment" in tensorizer_ops.names(tmp_path / "all.safetensors")
    with pytest.raises(errors.InvalidArgument, match=r"prefix: .*'modle\.' matches.*'model\.b'"):
        checkpoint.consolidate(ranks, tmp_path / "x.tensors", prefix="modle.")
    assert not (tmp_path / "x.tensors").exists()


def test_a_folder_of_hugging_face(ranks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = {"max_shard_size": "96KB"}
    checkpoint.consolidate(ranks, f"{out}/", prefix="model.", target_options=options)
    assert sorted(path.name for path in out.iterdir()) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    listed = json.loads((out / "model.safetensors.index.json").read_text())
    assert listed["metadata"] == {"total_size": 8 * 3000 * 6 + 12}
    assert_same(sorted_load(out), model())
    with pytest.raises(errors.InvalidArgument, match="already has a model in 'model"):
        checkpoint.consolidate(ranks, out, prefix="model.")
    (out / "model.safetensors.index.json").unlink()
    one = tmp_path / "one"
    one.mkdir()
    checkpoint.consolidate(ranks, one, prefix="model.")
    assert [path.name for path in one.iterdir()] == ["model.safetensors"]
    with pytest.raises(errors.InvalidArgument, match="max_shard_size is for a folder"):
        checkpoint.consolidate(ranks, tmp_path / "m.safetensors", target_options=options)
    with pytest.raises(errors.InvalidArgument, match="'format'"):
        checkpoint.consolidate(ranks, f"{out}/", target_options={"format": "tensors"})


def test_a_folder_that_was_not_finished(ranks: Path, tmp_path: Path) -> None:
    """The next one may have other shards, which a signature of the folder would take, too."""
    (out := tmp_path / "out").mkdir()

    def stop(done: int, total: int) -> None:
        if [*out.glob("*.safetensors")]:
            raise InterruptedError

    options = {"max_shard_size": "96KB"}
    with pytest.raises(InterruptedError):
        checkpoint.consolidate(ranks, out, prefix="model.", target_options=options, progress=stop)
    assert not [*out.iterdir()]


def test_damage_and_other_files_are_refused(ranks: Path, tmp_path: Path) -> None:
    file = max(ranks.glob("rank-*.tensors"), key=lambda path: path.stat().st_size)
    flip(file, file.stat().st_size // 2)
    with pytest.raises(errors.HashMismatch):
        checkpoint.consolidate(ranks, tmp_path / "m.tensors")
    assert not (tmp_path / "m.tensors").exists()
    checkpoint.consolidate(ranks, tmp_path / "m.tensors", verify="none")
    with pytest.raises(errors.InvalidArgument, match="no checkpoint of many ranks"):
        checkpoint.consolidate(tmp_path / "m.tensors", tmp_path / "x.tensors")


def test_servers_and_the_command(tmp_path: Path) -> None:
    with s3_server(tmp_path) as s3:
        options = s3.options()
        where = "s3://bucket/run/7"
        run_ranks(tmp_path / "ranks", SAVE, where, json.dumps(options), count=2)
        how: Any = {"source_options": options, "target_options": options}
        checkpoint.consolidate(where, "s3://bucket/m.tensors", **how)
        assert checkpoint.load("s3://bucket/m.tensors", options=options)["step"] == 7
        shards = {**options, "max_shard_size": "96KB"}
        checkpoint.consolidate(
            where, "s3://bucket/m/", prefix="model.", source_options=options, target_options=shards
        )
        index = "s3://bucket/m/model.safetensors.index.json"
        assert_same(sorted_load(index, options=options), model())
        given = [word for pair in options.items() for word in ("-o", "=".join(pair))]
        to = tmp_path / "m.safetensors"
        run("consolidate", where, to, "--prefix", "model.", *given)
        assert_same(sorted_load(to), model())
        error = run("consolidate", where, to, "--prefix", "x.", *given, status=1).stderr
        assert "--prefix: no tensor is left that 'x.' matches" in error


PEAK = """
import sys, torch, tensorizer_ops
from tensorizer_ops import checkpoint
from support.folders import save_folder

def status(field):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) << 10

folder, target = sys.argv[1:]
save_folder(folder, {str(i): torch.ones(8 << 20) for i in range(6)} | {"small": torch.ones(1)})
checkpoint.consolidate(folder, target, prefix="sma")
before = status("RssAnon")
seen = []
checkpoint.consolidate(folder, target, progress=lambda *_: seen.append(status("RssAnon")))
assert max(seen) - before < (32 + 48 + 16) << 20, (max(seen) - before) >> 20
"""


def test_memory_is_that_of_the_largest_tensor(tmp_path: Path) -> None:
    fork_python(PEAK, str(tmp_path / "run"), str(tmp_path / "to.tensors"))


def test_without_data(tmp_path: Path) -> None:
    save_folder(tmp_path / "run", {"step": 3})
    checkpoint.consolidate(tmp_path / "run", tmp_path / "m.tensors")
    assert checkpoint.load(tmp_path / "m.tensors") == {"step": 3}
    checkpoint.consolidate(tmp_path / "run", f"{tmp_path}/out/")
    assert tensorizer_ops.load(tmp_path / "out") == {}


def test_a_checkpoint_that_is_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata is that of the tensors."""
    for place in ("older", "newer"):
        writer = checkpoint.TensorizerStorageWriter(tmp_path / place, metadata={"by": place})
        torch.distributed.checkpoint.save({"w": torch.ones(3)}, storage_writer=writer, no_dist=True)
    state_of = consolidated._state_of

    def replacing(*given: Any) -> Any:
        (tmp_path / "newer" / "checkpoint.tensors").replace(
            tmp_path / "older" / "checkpoint.tensors"
        )
        return state_of(*given)

    monkeypatch.setattr(consolidated, "_state_of", replacing)
    checkpoint.consolidate(tmp_path / "older", tmp_path / "m.tensors")
    assert tensorizer_ops.metadata(tmp_path / "m.tensors")["by"] == "older"
