"""Damaged and hostile checkpoints of ``torch.distributed.checkpoint``."""

from __future__ import annotations

import itertools
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.folders import save_folder
from tensorizer_ops import checkpoint, errors

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def test_damage_is_found(tmp_path: Path) -> None:
    save_folder(tmp_path, {"w": torch.ones(1 << 16)})
    (file,) = tmp_path.glob("rank-*")
    data = bytearray(file.read_bytes())
    data[-(1 << 16)] ^= 1
    file.write_bytes(data)
    for state in ({"w": torch.zeros(1 << 16)}, None):
        with pytest.raises(errors.HashMismatch, match="tensor 'w'"):
            checkpoint.load(tmp_path, state, verify="crc32")
    file.unlink()
    with pytest.raises(errors.NotFound, match="rank-0-"):
        checkpoint.load(tmp_path, {"w": torch.zeros(1 << 16)})


GOOD = {
    "version": 1,
    "tensors": {
        "w": {
            "dtype": "float32",
            "requires_grad": False,
            "size": [4],
            "chunks": [[[0], [4], 0, "w"]],
        }
    },
    "values": {"epoch": [0, "epoch"]},
    "files": ["rank-0-0123456789abcdef.tensors"],
    "planner": "null",
}


def changed(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes})


def changed_tensor(**changes: Any) -> str:
    return changed(tensors={"w": {**GOOD["tensors"]["w"], **changes}})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        changed(version=2),
        changed(files=["../rank-0-0123456789abcdef.tensors"]),
        changed(files=["/etc/passwd"]),
        changed(files=[3]),
        changed(files=None),
        changed(values={"epoch": [1, "epoch"]}),
        changed(values={"epoch": [-1, "epoch"]}),
        changed(values={"epoch": [True, "epoch"]}),
        changed(values={"epoch": [0, 3]}),
        changed(values={"epoch": [0, "\ud800"]}),
        changed(planner='{"tensor": "w"}'),
        changed(planner="{"),
        changed_tensor(dtype="nn"),
        changed_tensor(dtype="load"),
        changed_tensor(size=[-1]),
        changed_tensor(size=[1 << 64]),
        changed_tensor(size=[True]),
        changed_tensor(size=[5]),
        changed_tensor(chunks=[[[1], [4], 0, "w"]]),
        changed_tensor(chunks=[[[0, 0], [4], 0, "w"]]),
        changed_tensor(chunks=[[[0], [4, 4], 0, "w"]]),
        changed_tensor(chunks=[[[0], [4], 0]]),
        changed_tensor(chunks=[]),
        changed_tensor(chunks=[[[0], [2], 0, "w"], [[0], [2], 0, "w"]]),
        changed_tensor(chunks=[[[0], [3], 0, "w"], [[1], [3], 0, "w"]]),
    ],
)
def test_hostile_lists(tmp_path: Path, text: str) -> None:
    key = "tensorizer_ops.distributed_checkpoint"
    reader = checkpoint.TensorizerStorageReader(tmp_path)
    tensorizer_ops.save(tmp_path / "checkpoint.tensors", {}, metadata={key: json.dumps(GOOD)})
    assert reader.read_metadata().state_dict_metadata.keys() == {"w", "epoch"}
    tensorizer_ops.save(tmp_path / "checkpoint.tensors", {}, metadata={key: text})
    with pytest.raises(errors.InvalidFormat, match="the list of files is damaged: ") as caught:
        reader.read_metadata()
    said = str(caught.value).partition("is damaged: ")[2]
    assert re.match(r"it |torch has no|no save writes such$", said)


@pytest.mark.parametrize("dims", [8, 40])
def test_offsets_of_the_same_hash(tmp_path: Path, dims: int) -> None:
    """As keys of a dict, they would take minutes."""
    same = 2**61 - 1
    parts = itertools.islice(itertools.product(range(4), repeat=dims), 8192)
    chunks = [[[i * same for i in part], [1] * dims, 0, "w"] for part in parts]
    text = changed_tensor(size=[2**63 - 1] * dims, chunks=chunks)
    metadata = {"tensorizer_ops.distributed_checkpoint": text}
    tensorizer_ops.save(tmp_path / "checkpoint.tensors", {}, metadata=metadata)
    begin = time.process_time()
    with pytest.raises(errors.InvalidFormat, match="overlap, or lacks"):
        checkpoint.TensorizerStorageReader(tmp_path).read_metadata()
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("other", [torch.ones(()), torch.ones(2, 2, dtype=torch.uint8)])
def test_a_value_that_is_another_tensor(tmp_path: Path, other: torch.Tensor) -> None:
    save_folder(tmp_path, {"epoch": 3})
    (file,) = tmp_path.glob("rank-*")
    tensorizer_ops.save(file, {"epoch": other}, metadata=tensorizer_ops.metadata(file))
    with pytest.raises(errors.InvalidFormat, match="must be the bytes of a value"):
        checkpoint.load(tmp_path, {"epoch": 0})


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(3),
        torch.ones(5),
        torch.ones(2, 2),
        torch.ones(4, 1),
        torch.ones(()),
        torch.ones(4, dtype=torch.int32),
        torch.ones(4, dtype=torch.float64),
    ],
)
def test_a_part_that_is_another_tensor_than_listed(tmp_path: Path, other: torch.Tensor) -> None:
    save_folder(tmp_path, {"w": torch.ones(4)})
    (file,) = tmp_path.glob("rank-*")
    tensorizer_ops.save(file, {"w": other}, metadata=tensorizer_ops.metadata(file))
    for state in ({"w": torch.zeros(4)}, {"w": torch.zeros(4).to(torch.float64)}, None):
        with pytest.raises(errors.InvalidFormat, match=r"the list of files says float32 \[4\]"):
            checkpoint.load(tmp_path, state)


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_file_in_the_place_of_another(tmp_path: Path, encrypted: bool) -> None:
    """Of an older checkpoint, by somebody who can write to the folder and does not have the key."""
    tensorizer_ops.keys.add("checkpoints", key=bytes(range(32)))
    options = {"key": "named:checkpoints"} if encrypted else {}
    for value in (1, 2):
        save_folder(tmp_path / str(value), {"w": torch.full((4,), value)}, options=options)
    (old,) = (tmp_path / "1").glob("rank-*")
    (new,) = (tmp_path / "2").glob("rank-*")
    new.write_bytes(old.read_bytes())
    for state in ({"w": torch.zeros(4)}, None):
        with pytest.raises(errors.InvalidFormat, match=f"{new.name}' is not the file that a rank"):
            checkpoint.load(tmp_path / "2", state, options=options)
