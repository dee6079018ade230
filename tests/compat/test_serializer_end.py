"""The file of a TensorSerializer after a write, after close(), and if it is never closed."""

from __future__ import annotations

import gc
import io
import os
import tempfile
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.process import fork, run_python, wait
from support.samples import assert_same, random_bytes, sample
from tensorizer_ops import TensorSerializer, TensorType


def test_the_end_decides(path: str) -> None:
    tensorizer_ops.save(path, {"old": torch.ones(1)})

    def started() -> TensorSerializer:
        serializer = TensorSerializer(path)
        serializer.write_state_dict({"new": torch.ones(2)})
        return serializer

    with pytest.raises(ZeroDivisionError), started():
        raise ZeroDivisionError
    assert tensorizer_ops.TensorDeserializer(path, "cpu").keys() == {"old"}

    serializer = TensorSerializer(path)
    with pytest.warns(ResourceWarning, match="aborted"):  # nothing was written
        del serializer
        gc.collect()
    serializer = started()
    with pytest.raises(TypeError):
        serializer.write_state_dict({"x": None})
    with pytest.warns(ResourceWarning, match="aborted"):
        del serializer
        gc.collect()
    assert tensorizer_ops.TensorDeserializer(path, "cpu").keys() == {"old"}

    serializer = TensorSerializer(path)
    serializer.write_tensor(0, "one", TensorType.PARAM, torch.ones(2))
    with pytest.warns(ResourceWarning, match="finished"):
        del serializer
        gc.collect()
    assert tensorizer_ops.TensorDeserializer(path, "cpu").keys() == {"one"}

    serializer = started()
    with pytest.warns(ResourceWarning, match="finished"):
        del serializer
        gc.collect()
    assert tensorizer_ops.TensorDeserializer(path, "cpu").keys() == {"new"}
    assert os.listdir(os.path.dirname(path)) == ["model.tensors"]

    serializer = started()
    serializer.close()
    serializer.close()
    with pytest.raises(ValueError, match="closed"):
        serializer.write_state_dict({"x": torch.ones(1)})


def opened(path: str, kind: str) -> Any:
    """Returns a writable file that already has some content."""
    if kind == "memory":
        file: Any = io.BytesIO()
    elif kind == "spooled":
        file = tempfile.SpooledTemporaryFile(max_size=1 << 10)  # noqa: SIM115
    else:
        file = open(path, "wb+", buffering=-1 if kind == "buffered" else 0)  # noqa: SIM115
    file.write(b"before")
    return file


def whole(file: Any) -> bytes:
    position = file.tell()
    file.seek(0)
    data: bytes = file.read()
    file.seek(position)
    return data


@pytest.mark.parametrize("kind", ["memory", "spooled", "buffered", "unbuffered"])
def test_a_file_object_is_whole_after_each_write(path: str, kind: str) -> None:
    file = opened(path, kind)
    serializer = TensorSerializer(file)
    expected: dict[str, torch.Tensor] = {}

    def check() -> None:
        end = file.tell()
        assert end == file.seek(0, os.SEEK_END)
        data = whole(file)
        assert data.startswith(b"before|TZR|")
        there = io.BytesIO(data)
        there.seek(6)
        assert_same(tensorizer_ops.TensorDeserializer(there, "cpu", verify_hash=True), expected)

    for name in ("a", "b"):
        expected[name] = sample(torch.float32, seed=ord(name))
        serializer.write_tensor(0, name, TensorType.PARAM, expected[name])
        check()
    for name in ("c", "large"):
        expected[name] = random_bytes(3 << 20, 1) if name == "large" else sample(torch.bfloat16)
        serializer.write_state_dict({name: expected[name]})
        check()
    # Later writes follow the end of the serialized file.
    file.write(b"behind")
    data = whole(file)
    assert data.endswith(b"behind")
    there = io.BytesIO(data)
    there.seek(6)
    assert_same(tensorizer_ops.TensorDeserializer(there, "cpu", verify_hash=True), expected)
    serializer.close()
    assert file.closed


@pytest.mark.parametrize("kind", ["memory", "spooled", "buffered", "unbuffered"])
@pytest.mark.parametrize("writes", [False, True])
def test_a_file_object_outlives_its_serializer(path: str, kind: str, writes: bool) -> None:
    file = opened(path, kind)
    serializer = TensorSerializer(file)
    if writes:
        serializer.write_tensor(0, "a", TensorType.PARAM, torch.ones(2))
    with pytest.warns(ResourceWarning, match="finished" if writes else "aborted"):
        del serializer
        gc.collect()
    file.write(b"behind")
    data = whole(file)
    assert data.startswith(b"before|TZR|" if writes else b"beforebehind")
    assert data.endswith(b"behind")
    if writes:
        there = io.BytesIO(data)
        there.seek(6)
        assert tensorizer_ops.TensorDeserializer(there, "cpu").keys() == {"a"}
    file.close()


@pytest.mark.parametrize("package", ["tensorizer", "tensorizer_ops"])
def test_the_end_of_the_program_finishes_a_file(path: str, package: str) -> None:
    code = """
import importlib, sys, torch
package = importlib.import_module(sys.argv[2])
serializer = package.TensorSerializer(sys.argv[1])
serializer.write_state_dict({"a": torch.ones(2)})
there = package.TensorDeserializer(sys.argv[3], device="cpu", lazy_load=True)
for cycle in ([serializer], [there]):
    cycle.append(cycle)
"""
    tensorizer_ops.save(f"{path}.there", {"a": torch.ones(2)})
    ended = run_python(code, path, package, f"{path}.there")
    assert ended.stderr == b""
    assert_same(tensorizer_ops.load(path, verify="all"), {"a": torch.ones(2)})


def test_a_child_finishes_nothing(path: str) -> None:
    serializers = [TensorSerializer(path)]
    serializers[0].write_state_dict({"a": torch.ones(2)})

    def child() -> None:
        serializers.clear()
        gc.collect()

    assert wait(fork(child)) == 0
    assert not os.path.exists(path)
    serializers[0].write_state_dict({"b": torch.ones(2)})
    serializers[0].close()
    assert tensorizer_ops.load(path, verify="all").keys() == {"a", "b"}
