"""Tensors without elements whose other dimensions are huge: what torch holds, files hold."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import safetensors.torch
import torch

import tensorizer_ops
from tensorizer_ops import errors
from tensorizer_ops.safetensors import safe_open

SHAPES = [(0, 2**61), (2**31, 0, 2**31), (2**63 - 1, 0), (0, 2**63 - 1), (2, 2**63 - 1, 0)]
TENSORS = {str(shape): torch.empty(shape, dtype=torch.complex64) for shape in SHAPES}
TENSORS["one"] = torch.ones(1)
SLICES = {"(0, 2305843009213693952)": (slice(0, 0), slice(2**60, None, 3))}


def shapes(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@pytest.fixture(params=["tensors", "safetensors", "encrypted"])
def options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    if request.param != "encrypted":
        return {"format": request.param}
    monkeypatch.setenv("EMPTY_SHAPES_KEY", "07" * 32)
    return {"key": "env:EMPTY_SHAPES_KEY", "plain_digests": "true"}


def test_every_way_to_load(tmp_path: Path, options: dict[str, str]) -> None:
    path = tmp_path / "model"
    given = {name: value for name, value in options.items() if name == "key"}
    tensorizer_ops.save(path, TENSORS, options=options, hashes="chunked")
    expected = shapes(TENSORS)
    for device in ("cpu", "meta"):
        assert shapes(tensorizer_ops.load(path, options=given, device=device)) == expected
    assert shapes(tensorizer_ops.load(path, options=given, copy=True, verify="all")) == expected
    loaded = tensorizer_ops.load(path, options=given, dtype=torch.float64)
    assert shapes(loaded) == expected
    assert shapes(dict(tensorizer_ops.iterate(path, options=given))) == expected
    with open(path, "rb") as file:
        stream = io.BufferedReader(file.raw)
        assert shapes(tensorizer_ops.load(stream, options=given)) == expected
    out = {name: torch.empty_like(tensor, device="meta") for name, tensor in TENSORS.items()}
    out["one"] = torch.zeros(1)
    tensorizer_ops.load_into(out, path, options=given)
    assert shapes(out) == expected
    assert out["one"] == 1
    with tensorizer_ops.Reader(path, options=given) as reader:
        assert {name: tuple(reader.shape(name)) for name in reader} == expected
        sliced = reader.load(slices=SLICES)
        assert tuple(sliced["(0, 2305843009213693952)"].shape) == (0, -(-(2**60) // 3))
    copied = tmp_path / "copy.tensors"
    tensorizer_ops.convert(path, copied, source_options=given)
    assert tensorizer_ops.digest(copied) == tensorizer_ops.digest(path, options=given)
    tensorizer_ops.verify(path, options=given)


def test_the_safetensors_library_and_this_one_read_each_other(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    tensorizer_ops.save(ours, TENSORS, hashes="none")
    safetensors.torch.save_file(TENSORS, theirs)
    assert ours.read_bytes() == theirs.read_bytes()
    assert shapes(safetensors.torch.load_file(ours)) == shapes(tensorizer_ops.load(theirs))
    with safe_open(theirs, "pt") as opened:
        assert opened.get_slice("(0, 2305843009213693952)")[:, :7].shape == (0, 7)


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    huge = torch.empty(1, device="meta").expand(2**61)
    packed = torch.empty(0, 2**63 - 1, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    for tensor, name, why in (
        (huge, "x.tensors", "its shape has too many elements"),
        (torch.ones(1).expand(2**61), "x.tensors", "its shape has too many elements"),
        (torch.ones(1).expand(2**61), "x.safetensors", "its shape has too many elements"),
        (packed, "x.safetensors", "a dimension is too large"),
    ):
        with pytest.raises(errors.InvalidArgument, match=f"tensor 'x' cannot be saved.*{why}"):
            tensorizer_ops.save(tmp_path / name, {"x": tensor})
        with tensorizer_ops.Writer(tmp_path / name) as writer:
            with pytest.raises(errors.InvalidArgument, match=why):
                writer.add("x", tensor)
            writer.abort()
        assert list(tmp_path.iterdir()) == []
