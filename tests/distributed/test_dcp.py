"""Checkpoints of ``torch.distributed.checkpoint``: with our storage, and without pickle."""

from __future__ import annotations

import io
import json
import os
import pickle
import pickletools
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

import tensorizer_ops
from local_servers.redis_server import RedisServer
from local_servers.s3_server import s3_server
from local_servers.web import nginx
from support.folders import save_folder, save_folder_async
from support.process import fork, wait
from support.ranks import run_ranks
from tensorizer_ops import checkpoint, errors

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

# Trains a sharded model on every rank, and saves or loads its whole state.
TRAIN = """
import warnings
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh
from tensorizer_ops import checkpoint

def build(seed):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(33, 65), torch.nn.Tanh(), torch.nn.Linear(65, 7)]
    model = torch.nn.Sequential(*layers)
    for layer in (*layers[::2], model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (size,)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)

def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.linspace(-1, 1, 33).repeat(4, 1)).sum().backward()
    optimizer.step()

def state_of(model, optimizer, epoch, more):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "epoch": epoch, "more": more}

MORE = {"list": [1, "a", None, 2.5], "pair": (1, 2), "numbers": torch.arange(10.0), "bytes": b"x"}
where, options, what = given[0], json.loads(given[1]), given[2]
if what == "save":
    model, optimizer = build(0)
    for _ in range(3):
        step(model, optimizer)
    checkpoint.save(where, state_of(model, optimizer, 3, MORE), options=options)
else:
    model, optimizer = build(1)
    step(model, optimizer)
    empty = {**MORE, "list": [0, "", None, None], "pair": None, "numbers": torch.zeros(10),
             "bytes": b""}
    state = state_of(model, optimizer, 0, empty)
    checkpoint.load(where, state, options=options, verify="crc32")
    set_state_dict(model, optimizer, model_state_dict=state["model"],
                   optim_state_dict=state["optimizer"])
    assert state["epoch"] == 3
    numbers = state["more"].pop("numbers")
    assert torch.equal(numbers, MORE.pop("numbers")) and state["more"] == MORE, state["more"]
    step(model, optimizer)
    report({name: p.full_tensor().tolist() for name, p in model.named_parameters()})
"""


def trained() -> dict[str, Any]:
    """Returns the weights that one process has after four steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(33, 65), torch.nn.Tanh(), torch.nn.Linear(65, 7))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.linspace(-1, 1, 33).repeat(4, 1)).sum().backward()
        optimizer.step()
    return dict(model.named_parameters())


def check_trained(reports: list[Any]) -> None:
    for report in reports:
        for name, wanted in trained().items():
            torch.testing.assert_close(torch.tensor(report[name]), wanted.detach())


def test_training_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    run_ranks(tmp_path / "save", TRAIN, folder, "{}", "save", count=3)
    for file in folder.iterdir():  # nothing is pickled
        assert file.suffix == ".tensors" and not has_pickle(file.read_bytes())
    check_trained(run_ranks(tmp_path / "load", TRAIN, folder, "{}", "load", count=2).reports)
    weight = torch.zeros(65, 33)
    checkpoint.load(folder, {"model": {"0.weight": weight}})
    assert weight.any()


def has_pickle(data: bytes) -> bool:
    """Returns whether a pickle of protocol 2 or later is somewhere in the bytes."""
    start = data.find(b"\x80")
    while start >= 0:
        if data[start + 1 : start + 2] in (b"\2", b"\3", b"\4", b"\5"):
            try:
                list(pickletools.genops(io.BytesIO(data[start:])))
            except Exception:
                pass
            else:
                return True
        start = data.find(b"\x80", start + 1)
    return False


def test_pickles_are_found() -> None:
    """The test above looks for pickles: it would find those of torch's own planner."""
    pickled = io.BytesIO()
    torch.save([1], pickled, _use_new_zipfile_serialization=False)
    assert has_pickle(b"before" + pickled.getvalue() + b"after")
    assert not has_pickle(b"before \x80\2 after")


@pytest.mark.parametrize("place", ["s3", "redis", "encrypted"])
def test_places(
    tmp_path: Path, redis: RedisServer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY", bytes(range(32)).hex())
    with s3_server(tmp_path) as s3:
        uri, options = {
            "s3": ("s3://bucket/runs/7", s3.options()),
            "redis": (redis.url("runs/7"), {}),
            "encrypted": (str(tmp_path / "checkpoint"), {"key": "env:MODEL_KEY"}),
        }[place]
        given = (uri, json.dumps(options))
        run_ranks(tmp_path / "save", TRAIN, *given, "save", count=2)
        check_trained(run_ranks(tmp_path / "load", TRAIN, *given, "load", count=1).reports)
        if place == "s3":
            assert len(s3.objects()) == 3


def test_loads_from_a_web_server(tmp_path: Path) -> None:
    with nginx(tmp_path) as web:
        save_folder(web.root / "checkpoint", {"w": torch.arange(9.0)})
        loaded = {"w": torch.zeros(9)}
        checkpoint.load(web.url("checkpoint"), loaded)
        for found in (loaded, checkpoint.load(web.url("checkpoint"))):
            assert torch.equal(found["w"], torch.arange(9.0))


def state(value: int) -> dict[str, Any]:
    return {
        "weights": {f"{i}.weight": torch.full((i, 3000), value / 7) for i in range(40)},
        "epoch": value,
    }


def check_state(folder: str | Path, options: dict[str, str] | None = None) -> int:
    """Loads a state, whose values are all of one save, and returns which."""
    loaded = state(-1)
    checkpoint.load(folder, loaded, verify="crc32", options=options)
    wanted = state(loaded["epoch"])
    for name, tensor in loaded["weights"].items():
        assert torch.equal(tensor, wanted["weights"][name])
    return int(loaded["epoch"])


def test_a_save_in_the_background_is_of_its_moment(tmp_path: Path) -> None:
    writer = checkpoint.TensorizerStorageWriter()
    saved = state(0)
    tied = saved["weights"]["tied"] = saved["weights"]["3.weight"]
    memory = []
    for value in range(3):
        staged = writer.stage(saved)  # what async_save() uses
        assert staged["weights"]["tied"] is staged["weights"]["3.weight"] is not tied
        memory.append({t.data_ptr() for t in staged["weights"].values() if t.numel()})
        for tensor in saved["weights"].values():
            tensor.fill_((value + 1) / 7)
        dcp.save(
            staged,
            checkpoint_id=tmp_path / str(value),
            storage_writer=writer,
            planner=checkpoint.JsonSavePlanner(),
        )
        del staged
        saved["epoch"] = value + 1
        assert check_state(tmp_path / str(value)) == value
    assert memory[0] == memory[1] == memory[2]
    first = writer.stage(saved)
    second = writer.stage(saved)  # while the first copy is in use, as when its save has failed
    pointers = [{t.data_ptr() for t in s["weights"].values() if t.numel()} for s in (first, second)]
    assert pointers[0] in memory and not pointers[0] & pointers[1]
    assert len(pickle.dumps(writer)) < 10_000
    del first, second
    saving = save_folder_async(tmp_path / "last", saved, writer)
    for tensor in saved["weights"].values():
        tensor.zero_()
    saving.result()
    assert check_state(tmp_path / "last") == 3
    writer.close()


def test_saves_with_one_writer_at_the_same_time(tmp_path: Path) -> None:
    """Each goes on in its own folder."""
    writer = checkpoint.TensorizerStorageWriter()
    for delay in range(20):
        saves = []
        for number in range(2):
            state = {"w": torch.full((1000,), number)}
            saves.append(save_folder_async(tmp_path / str(number), state, writer))
            time.sleep(delay / 2000)
        for save in saves:
            save.result()
        for number in range(2):
            loaded = {"w": torch.zeros(1000, dtype=torch.int64)}
            checkpoint.load(tmp_path / str(number), loaded)
            assert (loaded["w"] == number).all()


def saves_again_and_again(uri: str | Path, options: dict[str, str]) -> None:
    value = 0
    while True:
        value += 1
        save_folder(uri, state(value), options=options)


@pytest.mark.parametrize("place", ["file", "s3"])
def test_a_kill_leaves_a_whole_checkpoint(tmp_path: Path, place: str) -> None:
    dice = random.Random(5)
    with s3_server(tmp_path) as s3:
        uri: str | Path = tmp_path / "checkpoint" if place == "file" else "s3://bucket/run"
        options = {"fsync": "false"} if place == "file" else s3.options()
        save_folder(uri, state(0), options=options)
        seen = set()
        for _ in range(25 if place == "file" else 5):
            pid = fork(lambda: saves_again_and_again(uri, options))
            # A save to the server takes longer, and some must be complete.
            time.sleep(0.05 + dice.random() / (8 if place == "file" else 1))
            os.kill(pid, signal.SIGKILL)
            assert wait(pid) == -signal.SIGKILL
            if place == "s3":
                time.sleep(0.2)  # the server may still complete what it has received
                s3.settle()
                seen.add(check_state(uri, options))
            else:
                seen.add(check_state(uri))
        assert seen - {0}  # some saves were complete
    if place == "file":  # what the kills left, the next save deletes
        save_folder(uri, state(1))
        assert len([name for name in os.listdir(uri) if name[0] != "."]) == 2


def test_a_file_that_is_no_part_of_it_stays(tmp_path: Path) -> None:
    for name in ("rank-0.tensors", "notes.txt", "rank-x-0123456789abcdef.tensors"):
        (tmp_path / name).touch()
    save_folder(tmp_path, state(0))
    save_folder(tmp_path, state(1))
    assert len(list(tmp_path.iterdir())) == 5


def test_other_planners_are_opaque(tmp_path: Path) -> None:
    """Torch's planners pickle what is no tensor: ours reads of that only what is harmless."""
    writer = checkpoint.TensorizerStorageWriter(tmp_path)
    harmful = {"w": torch.ones(3), "pair": (1, 2), "path": Path("x")}
    dcp.save(harmful, storage_writer=writer, planner=DefaultSavePlanner())
    loaded: dict[str, Any] = {"w": torch.zeros(3), "pair": None}
    checkpoint.load(tmp_path, loaded)
    assert loaded["pair"] == (1, 2) and torch.equal(loaded["w"], torch.ones(3))
    for state in ({"path": None}, None):
        with pytest.raises(errors.InvalidFormat, match="weights_only"):
            checkpoint.load(tmp_path, state)
    theirs: dict[str, Any] = {"path": None}
    reader = checkpoint.TensorizerStorageReader(tmp_path)
    dcp.load(theirs, storage_reader=reader, planner=DefaultLoadPlanner())
    assert theirs["path"] == Path("x")


def test_a_list_that_one_rank_cannot_read(tmp_path: Path) -> None:
    """The other ranks do not wait for it: torch would ask it again in a way of its own."""
    body = """
import torch.distributed.checkpoint as dcp
from tensorizer_ops import checkpoint, errors
checkpoint.save(given[0], {"w": torch.ones(3)})
reader = checkpoint.TensorizerStorageReader(given[0])
if rank == 1:
    read, tries = reader.read_metadata, []
    def fails_once(*args, **kwargs):
        tries.append(None)
        if len(tries) == 1:
            raise errors.NotFound("404")
        return read(*args, **kwargs)
    fails_once.__signature__ = inspect.signature(read)
    reader.read_metadata = fails_once
try:
    dcp.load({"w": torch.zeros(3)}, storage_reader=reader)
    report(None)
except dcp.CheckpointException as error:
    report(str(error))
"""
    ranks = run_ranks(tmp_path / "ranks", "import inspect\n" + body, tmp_path / "saved", count=2)
    assert all("404" in error for error in ranks.reports)


def test_what_needs_pickle_is_refused(tmp_path: Path) -> None:
    for value, text in (
        (Path("x"), r"state\['optimizer.path'\] is pathlib.*only pickle could save"),
        ((torch.ones(2), 3), r"state\['optimizer.path'\] is tuple with tensors in it"),
        (
            torch.ones(2, device="meta"),
            r"tensor 'optimizer.path' cannot be saved: it is on the meta device",
        ),
    ):
        with pytest.raises(CheckpointException, match=text):
            save_folder(tmp_path, {"optimizer": {"path": value}})
        assert not (tmp_path / "checkpoint.tensors").exists()


# A rank with two parts of one tensor, which are stored under names of their own.
PARTS = """
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.metadata import ShardMetadata
from tensorizer_ops import checkpoint

def parts(values):
    places = [ShardMetadata([4 * i], [4], "rank:0/cpu") for i in range(2)]
    shards = [sharded_tensor.Shard(torch.full((4,), v), p) for v, p in zip(values, places)]
    kind = sharded_tensor.TensorProperties.create_from_tensor(torch.zeros(1))
    whole = sharded_tensor.ShardedTensorMetadata(places, torch.Size([8]), kind)
    return sharded_tensor.ShardedTensor._init_from_local_shards_and_global_metadata(shards, whole)

state = {"x": parts([1.0, 2.0]), "x from [4]": torch.full((4,), 9.0)}
checkpoint.save(given[0], state)
state = {"x": parts([0.0, 0.0]), "x from [4]": torch.zeros(4)}
checkpoint.load(given[0], state)
report([*(s.tensor.tolist() for s in state["x"].local_shards()), state["x from [4]"].tolist()])
"""


def test_a_tensor_with_the_name_of_a_part(tmp_path: Path) -> None:
    outcome = run_ranks(tmp_path / "ranks", PARTS, tmp_path / "checkpoint", count=1)
    assert outcome.reports == [[[1.0] * 4, [2.0] * 4, [9.0] * 4]]


APART = """
from tensorizer_ops import checkpoint
try:
    checkpoint.save(f"{given[0]}/{rank}", {f"w{rank}": torch.ones(4)})
except BaseException as error:
    report(str(error))
"""


def test_ranks_that_save_to_other_folders(tmp_path: Path) -> None:
    reports = run_ranks(tmp_path / "ranks", APART, tmp_path, count=2).reports
    assert all("all ranks must save to the same place" in str(report) for report in reports)
    assert not list(tmp_path.glob("*/checkpoint.tensors"))


def test_places_that_are_no_checkpoint(tmp_path: Path) -> None:
    for state in ({"w": torch.zeros(4)}, None):
        with pytest.raises(errors.IsADirectory, match=r"is a folder without 'checkpoint.tensors'"):
            checkpoint.load(tmp_path, state)
    tensorizer_ops.save(tmp_path / "checkpoint.tensors", {"w": torch.ones(4)})
    for state in ({"w": torch.zeros(4)}, None):
        with pytest.raises(errors.InvalidFormat, match=r"lists no files of a checkpoint"):
            checkpoint.load(tmp_path, state)
    save_folder(tmp_path, {"w": torch.ones(4)})
    with pytest.raises(errors.InvalidFormat, match="lists the files of many ranks"):
        checkpoint.load(tmp_path / "checkpoint.tensors")


def test_secrets_are_not_pickled() -> None:
    writer = checkpoint.TensorizerStorageWriter("x", options={"s3_secret_access_key": "hidden"})
    with pytest.raises(TypeError, match="may contain secrets"):
        pickle.dumps(writer)
    pickle.loads(pickle.dumps(checkpoint.TensorizerStorageReader("x")))
