"""Iterators over the tensors of a file."""

from __future__ import annotations

import gc
import io
import json
import threading
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.web import nginx
from support.process import fork_python, run_python
from support.samples import assert_same, zoo
from tensorizer_ops import errors


def few(count: int = 50) -> dict[str, torch.Tensor]:
    return {f"t{i}": torch.full((i * 100,), i, dtype=torch.float32) for i in range(count)}


@pytest.mark.parametrize("ceiling", [1 << 20, 48 << 20])
def test_every_tensor_comes_once_in_the_order_of_the_file(tmp_path: Path, ceiling: int) -> None:
    path = tmp_path / "m.tensors"
    tensors = zoo() | {f"large{i}": torch.randn(300_000) for i in range(5)}
    tensorizer_ops.save(path, tensors)
    options = {"memory_ceiling": ceiling}
    found = list(tensorizer_ops.iterate(path, verify="all", options=options))
    assert [name for name, _ in found] == list(tensors)
    assert_same(dict(found), tensors)


def test_names_and_their_order(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, few())
    names = ["t7", "t3", "t20"]
    by_file = [name for name, _ in tensorizer_ops.iterate(path, names=names)]
    by_names = [name for name, _ in tensorizer_ops.iterate(path, names=names, order="names")]
    assert by_file == ["t3", "t7", "t20"] and by_names == names
    with pytest.raises(KeyError, match="no tensor 't77x'"):
        tensorizer_ops.iterate(path, names=["t7", "t77x"])


def test_data_that_is_listed_in_another_order(tmp_path: Path) -> None:
    places = {"b": [8, 16], "a": [0, 8], "c": [16, 24]}
    header = {n: {"dtype": "F32", "shape": [2], "data_offsets": at} for n, at in places.items()}
    text = json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(24))
    for names in (None, ["c", "b", "a"]):
        assert [name for name, _ in tensorizer_ops.iterate(path, names=names)] == ["a", "b", "c"]


def test_the_arguments_of_a_load(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, few())
    for name, tensor in tensorizer_ops.iterate(path, dtype=torch.bfloat16, copy=True, threads=1):
        assert_same({name: tensor}, {name: few()[name].bfloat16()})


def test_streams_and_file_objects(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, few())
    assert_same(dict(tensorizer_ops.iterate(io.BytesIO(path.read_bytes()))), few())
    with path.open("rb") as file:
        code = "import sys; from tensorizer_ops import iterate; print(len(list(iterate('fd:0'))))"
        assert run_python(code, stdin=file.fileno()).stdout == b"50\n"


def test_damage_is_an_error_at_its_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    tensors = {f"t{i}": torch.full((200_000,), i, dtype=torch.float32) for i in range(8)}
    tensorizer_ops.save(path, tensors)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    found = []
    with pytest.raises(errors.HashMismatch, match="t7"):
        for name, _ in tensorizer_ops.iterate(
            path, verify="crc32", options={"memory_ceiling": 1 << 20}
        ):
            found.append(name)
    assert found == [f"t{i}" for i in range(7)]


def test_who_stops_early_leaves_nothing_behind(tmp_path: Path) -> None:
    with nginx(tmp_path) as web:
        tensors = {f"t{i}": torch.full((500_000,), i, dtype=torch.float32) for i in range(8)}
        tensorizer_ops.save(web.root / "m.tensors", tensors)
        options = {"memory_ceiling": 1 << 20}
        # The second batch would take 2 s at 1 MB/s.
        found = tensorizer_ops.iterate(web.url("slow/m.tensors"), options=options)
        assert next(found)[0] == "t0"
        del found
        gc.collect()
        assert not [t for t in threading.enumerate() if t.name == "tensorizer_ops"]


BOUNDED = """
import sys, torch, tensorizer_ops
from support.process import resident
path, dtype = sys.argv[1], getattr(torch, sys.argv[2])
before = most = resident()
options = {"memory_ceiling": 16 << 20}
for name, tensor in tensorizer_ops.iterate(path, copy=True, dtype=dtype, options=options):
    del tensor
    most = max(most, resident())
assert most - before < 48 << 20, (most - before) >> 20
"""


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_memory_is_bounded(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "m.tensors"
    model = {f"t{i}": torch.ones(1 << 19, dtype=torch.float16) for i in range(256)}
    tensorizer_ops.save(path, model)
    fork_python(BOUNDED, path, dtype)
