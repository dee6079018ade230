"""tensorizer_ops.safetensors.numpy and .torch, compared with the modules of safetensors."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import tensorizer_ops
import tensorizer_ops.safetensors.numpy as ours
import tensorizer_ops.safetensors.torch as ours_torch


def arrays() -> dict[str, numpy.ndarray]:
    kinds = ("float64", "float32", "float16", "int64", "uint64", "int32", "uint32", "int16")
    counted = numpy.arange(12).reshape(3, 4)
    return {
        **{kind: counted.astype(kind) for kind in (*kinds, "uint16", "int8", "uint8", "bool")},
        "columns": counted.astype("float32").T,
        "backwards": counted[::-1],
        "big endian": counted.astype(">i4"),
        "read only": numpy.broadcast_to(numpy.float32(3), (2, 2)),
        "scalar": numpy.array(7),
        "empty": numpy.empty((0, 3)),
    }


def assert_same(loaded: dict[str, numpy.ndarray], wanted: dict[str, numpy.ndarray]) -> None:
    assert loaded.keys() == wanted.keys()
    for name, array in wanted.items():
        assert loaded[name].dtype == array.dtype.newbyteorder("=")
        assert numpy.array_equal(loaded[name], array), name


def test_the_modules_have_the_same_functions() -> None:
    for module, theirs in ((ours, safetensors.numpy), (ours_torch, safetensors.torch)):
        for name in module.__all__:
            mine, other = (
                inspect.signature(getattr(each, name)).parameters for each in (module, theirs)
            )
            assert list(mine) == list(other)
            assert [p.default for p in mine.values()] == [p.default for p in other.values()]
    assert set(tensorizer_ops.safetensors.__all__) > set(ours_torch.__all__)
    assert tensorizer_ops.safetensors.load_file is ours_torch.load_file
    assert tensorizer_ops.safetensors.numpy is ours


def test_files_and_bytes_are_the_same(tmp_path: Path) -> None:
    path, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    # Of others, that library writes bytes that are not theirs.
    whole = {name: array for name, array in arrays().items() if array.flags.c_contiguous}
    ours.save_file(whole, path, {"format": "np"})
    safetensors.numpy.save_file(whole, theirs, {"format": "np"})
    assert path.read_bytes() == theirs.read_bytes() == ours.save(whole, {"format": "np"})
    for backend in ("mmap", "pread"):
        assert_same(ours.load_file(theirs, backend=backend), whole)
    assert_same(ours.load(ours.save(arrays())), arrays())
    assert_same(safetensors.numpy.load(ours.save(arrays())), arrays())
    ours.load_file(path)["float32"][0, 0] = 5  # changes no file
    assert path.read_bytes() == theirs.read_bytes()


def test_open_files_give_arrays(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    ours.save_file(arrays(), path)
    for library in (safetensors, tensorizer_ops.safetensors):
        with library.safe_open(path, framework="np") as opened:
            for found in (opened.get_tensor("int8"), opened.get_slice("int8")[:]):
                assert (
                    isinstance(found, numpy.ndarray) and found.tolist() == arrays()["int8"].tolist()
                )
            assert opened.get_slice("float32")[1:, 2].tolist() == [6, 10]


def test_what_arrays_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with pytest.raises(TypeError, match=r"tensor_dict\['x'\] is Tensor, and must be an array"):
        ours.save_file({"x": torch.ones(2)}, path)  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="tensor 'x' cannot be saved"):
        ours.save_file({"x": numpy.array(["text"])}, path)
    tensorizer_ops.save(path, {"x": torch.ones(2, dtype=torch.bfloat16)})
    with pytest.raises(TypeError, match=r"tensor 'x' cannot be an array: .*BFloat16"):
        ours.load_file(path)
