"""names, info, metadata and verify: what a file holds, and whether it is intact."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.process import run_python
from support.raw_parse import parse
from support.samples import random_bytes, zoo
from tensorizer_ops import errors

WITHOUT_TORCH = """
import sys
import tensorizer_ops

assert tensorizer_ops.names(sys.argv[1]) == ["x", "n"]
assert tensorizer_ops.metadata(sys.argv[1]) == {"step": "7"}
assert tensorizer_ops.info(sys.argv[1]).num_tensors == 2
assert "torch" not in sys.modules
with open(sys.argv[1], "rb") as file:
    assert tensorizer_ops.names(file) == ["x", "n"]
assert "torch" in sys.modules
"""


@pytest.fixture
def saved(path: str) -> str:
    tensors = {"x": torch.ones(3, 4), "n": torch.arange(3)}
    tensorizer_ops.save(path, tensors, metadata={"step": "7"})
    return path


def test_they_import_torch_only_for_file_objects(saved: str) -> None:
    run_python(WITHOUT_TORCH, saved)


def test_info_says_what_the_file_holds(saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tensorizer_ops.info(Path(saved))
    assert (info.format, info.encrypted, info.authenticated) == ("tensors", False, False)
    assert info.version > 0
    assert info.metadata == {"step": "7"}
    assert info.num_tensors == 2
    assert info.num_bytes == 48 + 24
    first = info.tensors[0]
    assert (first.name, first.dtype, first.shape) == ("x", "float32", (3, 4))
    assert first.data_offset == parse(Path(saved).read_bytes())["x"].data_offset
    monkeypatch.setenv("TEST_INSPECT_KEY", "11" * 32)
    key = {"key": "env:TEST_INSPECT_KEY"}
    tensorizer_ops.save(saved, {}, options=key)
    hidden = tensorizer_ops.info(saved, options=key)
    assert (hidden.encrypted, hidden.authenticated, hidden.tensors) == (True, True, [])
    tensorizer_ops.save(saved, zoo_of_safetensors(), options={"format": "safetensors"})
    other = tensorizer_ops.info(saved)
    assert (other.format, other.version, other.num_tensors) == ("safetensors", 0, 1)


def zoo_of_safetensors() -> dict[str, torch.Tensor]:
    return {"int8": zoo()["int8"]}


def test_they_raise_what_a_load_raises(path: str) -> None:
    function: Any
    for function in (
        tensorizer_ops.names,
        tensorizer_ops.info,
        tensorizer_ops.metadata,
        tensorizer_ops.verify,
    ):
        with pytest.raises(errors.NotFound):
            function(path)
        with pytest.raises(errors.InvalidArgument, match="'no such'"):
            function(path, options={"no such": 1})
        with pytest.raises(TypeError, match="int"):
            function(7)
    with pytest.raises(TypeError, match="BytesIO"):
        tensorizer_ops.info(io.BytesIO())


def test_verify_names_all_that_is_damaged(path: str) -> None:
    tensors = {name: random_bytes(5000, number) for number, name in enumerate("abc")}
    tensorizer_ops.save(path, tensors)
    calls: list[tuple[int, int]] = []
    tensorizer_ops.verify(path, progress=lambda *numbers: calls.append(numbers))
    assert calls[-1] == (15000, 15000)
    raw = bytearray(Path(path).read_bytes())
    for name in "ac":
        raw[parse(bytes(raw))[name].data_offset + 7] ^= 1
    Path(path).write_bytes(raw)
    for source in (path, io.BytesIO(raw)):
        for kind in ("crc32", "all"):
            with pytest.raises(errors.HashMismatch, match=r"'a'(.|\n)*'c'"):
                tensorizer_ops.verify(source, verify=kind, threads=1)
    tensorizer_ops.save(path, tensors, hashes="none")
    with pytest.raises(ValueError, match="hash"):
        tensorizer_ops.verify(path)
