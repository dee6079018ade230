"""``checkpoint.save`` and ``load`` in jobs of many ranks, in folders and files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from local_servers.s3_server import s3_server
from support.folders import save_folder
from support.ranks import run_ranks
from support.samples import assert_same, same
from tensorizer_ops import checkpoint, errors

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

# A state with shards, numbers as keys, lists and empty dicts.
STATE = """
import torch
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh
from tensorizer_ops import checkpoint, errors

def state_of(value, mesh=None):
    whole = torch.arange(24.0).view(8, 3) * value
    return {
        "shards": distribute_tensor(whole, mesh, [Shard(0)]) if mesh else whole,
        "optimizer": {"state": {0: {"step": value, "moment": torch.full((2,), 1.0 * value)}, 1: {}},
                      "param_groups": [{"lr": 0.1 * value, "params": [0, 1]}]},
        "list": [torch.full((3,), 1.0 * value), [value, {"x": (value, "a")}]],
        "0": {"1": value},
        "": {},
    }
"""
exec(STATE)
state_of: Any = globals()["state_of"]


def flat(state: Any) -> dict[str, Any]:
    """Returns the tensors and other values of a state, by paths with the types of all keys."""
    if isinstance(state, dict | list):
        pairs = state.items() if isinstance(state, dict) else enumerate(state)
        inside = {f"[{key!r}]{n}": v for key, each in pairs for n, v in flat(each).items()}
        return {type(state).__name__ + path: v for path, v in inside.items()} | {
            type(state).__name__: len(state)
        }
    return {"": state}


def assert_equal(found: Any, wanted: Any) -> None:
    found, wanted = flat(found), flat(wanted)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, torch.Tensor):
            assert same(found[name], value), name
        else:
            assert found[name] == value and type(found[name]) is type(value), name


SAVES = f"""
{STATE}
mesh = init_device_mesh("cpu", (size,))
place, options, one = given[0], json.loads(given[1]), given[2]
done = []
checkpoint.save(place, state_of(3, mesh), options=options, metadata={{"by": "me"}},
                progress=lambda moved, total: done.append((moved, total)))
assert done and done[-1][0] == done[-1][1] > 0
if rank == 1:  # alone
    checkpoint.save(one, state_of(5), group=False)
dist.barrier()
for where, value in ((place, 3), (one, 5)):
    more = options if where == place else None
    state = state_of(0, mesh)
    shards = state["shards"]
    assert checkpoint.load(where, state, options=more, verify="all") is state
    assert state["shards"] is shards
    assert torch.equal(shards.full_tensor(), state_of(value)["shards"])
    assert torch.equal(state["list"][0], state_of(value)["list"][0])
    assert state["list"][1] == state_of(value)["list"][1]
    assert state["optimizer"]["state"][0]["step"] == value
    assert list(state["optimizer"]["state"]) == [0, 1]
    if rank == 0:  # no other rank takes part
        assert checkpoint.load(where, options=more)["0"] == {{"1": value}}
saving = checkpoint.save_async(place, state_of(4, mesh), options=options)
assert saving.result() is None and not saving.cancel()
report(checkpoint.load(place, {{"0": {{"1": 0}}}}, options=options)["0"]["1"])
"""


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_ranks_write_a_folder_and_one_rank_a_file(tmp_path: Path, place: str) -> None:
    with s3_server(tmp_path) as s3:
        uri = str(tmp_path / "c") if place == "folder" else "s3://bucket/run/3"
        options = {} if place == "folder" else s3.options()
        one = tmp_path / "one.tensors"
        ranks = run_ranks(tmp_path / "ranks", SAVES, uri, json.dumps(options), one, count=2)
        assert ranks.reports == [4, 4]
        assert_equal(checkpoint.load(uri, options=options, verify="all"), state_of(4))
        assert_equal(checkpoint.load(one), state_of(5))
        if place == "folder":
            checkpoint.save(tmp_path / "alone.tensors", {"x": 1})
            assert (tmp_path / "alone.tensors").is_file()  # no job, no folder
        else:
            checkpoint.save("s3://bucket/run/alone", {"x": 1}, options=options)
            assert checkpoint.load("s3://bucket/run/alone", options=options) == {"x": 1}


def test_texts_and_device_of_a_folder(tmp_path: Path) -> None:
    save_folder(tmp_path, {"w": torch.ones(2)}, metadata={"by": "me"})
    assert tensorizer_ops.metadata(tmp_path / "checkpoint.tensors")["by"] == "me"
    assert checkpoint.load(tmp_path, device="cpu")["w"].is_cpu
    with pytest.raises(errors.InvalidArgument, match="device is meta"):
        checkpoint.load(tmp_path, device="meta")
    with pytest.raises(ValueError, match="which holds the state"):
        checkpoint.TensorizerStorageWriter(
            metadata={"tensorizer_ops.distributed_checkpoint": "other"}
        )


GROUPS = """
from torch.distributed.tensor import init_device_mesh
from tensorizer_ops import checkpoint
def text(call):
    try:
        call()
    except Exception as error:
        trace, files = error.__traceback__, []
        while trace:
            files.append(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next
        assert not any("/torch/distributed/checkpoint/" in file for file in files), files
        return f"{type(error).__name__}: {error}"
state = {"w": torch.full((2,), rank)}
pair = dist.new_group([0, 1])
if rank < 2:
    checkpoint.save(given[0] + "/pair", state, pair)
texts = [text(lambda: checkpoint.save(given[0] + "/pair", state, pair)) if rank == 2 else None]
mesh = init_device_mesh("cpu", (size,))
checkpoint.save(given[0] + "/mesh", state, mesh)
gpus = dist.new_group(backend="cuda:gloo")
for call in (
    lambda: checkpoint.save(given[0] + "/x", state, True),
    lambda: checkpoint.save(given[0] + "/x", state, 3),
    lambda: checkpoint.save(open("/dev/null", "wb"), state),
    lambda: checkpoint.save("fd:1", state),
    lambda: checkpoint.save(given[0] + "/x", state, threads=2000),
    lambda: checkpoint.save(given[0] + "/x", state, hashes="crc"),
    lambda: checkpoint.save(given[0] + "/x", state, options={"no_such": 1}),
    lambda: checkpoint.save(given[0] + "/x", [state]),
    lambda: checkpoint.save_async(given[0] + "/x", state, gpus),
):
    texts.append(text(call))
report(texts)
"""


def test_groups_and_wrong_arguments(tmp_path: Path) -> None:
    """Wrong arguments are errors before torch is called, whose errors take thirty lines."""
    reports = run_ranks(tmp_path / "ranks", GROUPS, tmp_path, count=3).reports
    assert [report[0] for report in reports[:2]] == [None, None]
    assert "InvalidArgument: rank 2 is not in the group" in reports[2][0]
    for report in reports:
        for found, wanted in zip(
            report[1:],
            [
                "TypeError: group is bool, and must be ProcessGroup, DeviceMesh, False or None",
                "TypeError: group is int, and must be",
                "TypeError: uri is BufferedWriter, and must be a path or a URI: many ranks save to",
                "InvalidArgument: uri is an open descriptor, and must be a folder",
                "InvalidArgument: threads is 2000, and must be",
                "InvalidArgument: hashes is 'crc', and must be",
                "InvalidArgument: .*no_such",
                "TypeError: state is list, and must be a dict",
                "InvalidArgument: the group has no backend for the CPU",
            ],
            strict=True,
        ):
            assert re.match(wanted, found), found
    assert not (tmp_path / "x").exists()
    assert len(list((tmp_path / "pair").iterdir())) == 2  # the tensor of one rank, and the list
    assert_same(checkpoint.load(tmp_path / "mesh"), {"w": torch.zeros(2, dtype=torch.int64)})


@pytest.mark.parametrize(
    ("paths", "text"),
    [
        ({"x.1000000000": ("x", 10**9)}, "a path with 1000000000"),
        ({"x.-1": ("x", -1)}, "a path with -1"),
        ({"x": (("x", "y"),)}, "a path with"),
        ({"None": (None,)}, "a path with None"),
        ({"": ()}, "no save writes such"),
        ({"x": 5}, "no save writes such"),
        ([1], "no save writes such"),
        ({"a": ("x",)}, "a path that does not lead to 'a'"),
        ({"a": (), "b": ("a",)}, "a path that does not lead to 'a'"),
        ({"a.b": ("a", "b")}, "a value in another value"),
        ({"x.y": ("x", "y"), "x": ("x",)}, "two values in one place"),
        ({"x.1": ("x", 1)}, "a list with gaps"),
        ({"x.1": ("x", 1), "x.y": ("x", "y")}, "no save writes such"),
        ({"x.y": ("x", ("y",))}, "no save writes such"),
        ({f"x.{i}": ("x", (f"{i * (2**61 - 1)}",)) for i in range(300)}, "not lead to 'x.1'"),
        (
            {f"x.{i * (2**61 - 1)}": ("x", (f"{i * (2**61 - 1)}",)) for i in range(300)},
            "have the same hash",
        ),
    ],
    ids=range(16),
)
def test_hostile_paths(tmp_path: Path, paths: Any, text: str) -> None:
    """Where values belong is what the file says, if there is no state."""
    save_folder(tmp_path, {"a": 1, "b": 2, "c": {}})
    key = "tensorizer_ops.distributed_checkpoint"
    listed = json.loads(tensorizer_ops.metadata(tmp_path / "checkpoint.tensors")[key])
    written = tensorizer_ops.metadata(tmp_path / "checkpoint.tensors")
    entries = json.dumps(encoded(paths))
    listed["planner"] = entries
    tensorizer_ops.save(
        tmp_path / "checkpoint.tensors", {}, metadata={**written, key: json.dumps(listed)}
    )
    with pytest.raises(errors.InvalidFormat, match=f"the nested state is damaged: .*{text}"):
        checkpoint.load(tmp_path)
    assert checkpoint.load(tmp_path, {"a": 0}) == {"a": 1}


def encoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {"dict": [[key, encoded(each)] for key, each in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [encoded(each) for each in value]}
    return value


def test_two_tensors_in_the_place_of_one(tmp_path: Path) -> None:
    """So that a file of a megabyte cannot ask for a terabyte of memory."""
    save_folder(tmp_path, {"a": torch.ones(4), "b": torch.ones(4)})
    key = "tensorizer_ops.distributed_checkpoint"
    text = tensorizer_ops.metadata(tmp_path / "checkpoint.tensors")[key]
    listed = json.loads(text)
    listed["tensors"]["b"]["chunks"][0][3] = "a"
    tensorizer_ops.save(tmp_path / "checkpoint.tensors", {}, metadata={key: json.dumps(listed)})
    with pytest.raises(errors.InvalidFormat, match="two tensors in the place of one"):
        checkpoint.load(tmp_path)


def test_progress_into_a_state_and_from_a_folder(tmp_path: Path) -> None:
    saved = {"w": torch.rand(1000, 30), "half": torch.rand(50).half(), "n": 3}
    file, folder = tmp_path / "c.tensors", tmp_path / "folder"
    checkpoint.save(file, saved)
    save_folder(folder, saved)

    def other() -> dict[str, Any]:  # of other types and strides
        return {"w": torch.empty(30, 1000).t(), "half": torch.empty(50), "n": 0}

    for place, state in ((file, other()), (folder, None), (folder, other())):
        calls: list[tuple[int, int]] = []
        found = checkpoint.load(
            place, state, verify="all", progress=lambda *both, to=calls: to.append(both)
        )
        assert torch.equal(found["w"], saved["w"]) and found["n"] == 3
        assert calls[-1] == (120100, 120100) and calls == sorted(calls)

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoint.load(folder, other(), progress=fail)
