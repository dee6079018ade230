"""Loads of every version of the format, and saves with the lowest version that suffices."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from support.raw_format import BUFFER, PARAMETER, Block, pack
from support.raw_parse import parse
from support.samples import DTYPES, SHAPES, assert_same, raw, sample, stored_dtype
from support.specimen import FLOATS, SHORTS, blocks
from tensorizer_ops.errors import Crypto

ops = torch.ops.tensorizer


def raw_zoo(long: bool) -> tuple[list[Block], dict[str, torch.Tensor]]:
    """Returns every dtype in every shape, as hand-written blocks and as tensors. If `long`, every
    second entry has version 5."""
    stored, tensors = [], {}
    for dtype_name, dtype in DTYPES.items():
        for kind, shape in SHAPES.items():
            name = f"{dtype_name}.{kind}"
            tensors[name] = sample(dtype, shape, len(tensors))
            block = Block(name, stored_dtype(dtype), shape, raw(tensors[name]))
            block.long = long and len(tensors) % 2 == 0
            block.padding = len(tensors) % 100
            if not block.data:
                # Only the header names the opaque dtype of an empty tensor.
                block.index["dtype"] = stored_dtype(dtype).split(b"\0")[0]
            stored.append(block)
    return stored, tensors


@pytest.mark.parametrize("version", [1, 2, 4, 5])
@pytest.mark.parametrize("copy", [False, True])
def test_reads_every_dtype_in_version(path: str, version: int, copy: bool) -> None:
    stored, tensors = raw_zoo(long=version == 5)
    Path(path).write_bytes(pack(stored, version=version))
    assert ops.names(path) == list(tensors)
    assert_same(ops.load(path, copy=copy), tensors)
    assert_same(ops.load(path, copy=copy, verify="all"), tensors)


def test_version_5_without_long_dimensions(path: str) -> None:
    stored, tensors = raw_zoo(long=False)
    Path(path).write_bytes(pack(stored, version=5, flags=0))
    assert_same(ops.load(path, verify="all"), tensors)


def test_opaque_dtypes_spelled_out_in_the_index_of_an_empty_tensor(path: str) -> None:
    dtype = b"<V2\0torch.bfloat16"
    Path(path).write_bytes(pack([Block("x", dtype, (0, 3))], version=2))
    assert ops.load(path, verify="all")["x"].dtype == torch.bfloat16


def test_bare_dtype_with_data(path: str) -> None:
    block = Block("x", b"<V2\0torch.bfloat16", (4,), SHORTS, index={"dtype": b"<V2"})
    Path(path).write_bytes(pack([block], version=2))
    for loaded in (ops.load(path), ops.load(path, copy=True, verify="all")):
        assert loaded["x"].dtype == torch.bfloat16
        assert raw(loaded["x"]) == SHORTS


@pytest.mark.parametrize("version", [4, 5])
def test_reads_meta_tensors(path: str, version: int) -> None:
    Path(path).write_bytes(
        pack([Block("x", "<f4", (2, 3)), Block("y", b"<V2\0torch.bfloat16", (3,))], version=version)
    )
    for copy in (False, True):
        expected = {"x": torch.zeros(2, 3), "y": torch.zeros(3, dtype=torch.bfloat16)}
        assert_same(ops.load(path, copy=copy, verify="all"), expected)


def test_long_dimensions(path: str) -> None:
    tensors = {
        "tall": torch.empty(2**32, 0),
        "wide": torch.empty(0, 2**33, dtype=torch.int8),
        "short": sample(torch.float64),
        "longest": torch.empty(2**62, 0, dtype=torch.uint8),
    }
    stored = [
        Block(
            name,
            stored_dtype(tensor.dtype),
            tuple(tensor.shape),
            raw(tensor),
            long=max(tensor.shape) >= 2**32,
        )
        for name, tensor in tensors.items()
    ]
    Path(path).write_bytes(pack(stored, version=5))
    assert_same(ops.load(path, verify="all"), tensors)

    ops.save(path, tensors)
    parsed = parse(Path(path).read_bytes())
    assert (parsed.version, parsed.flags) == (5, 2)
    assert [(entry.long, entry.shape) for entry in parsed.entries] == [
        (block.long, block.shape) for block in stored
    ]
    assert_same(ops.load(path, verify="all"), tensors)


def test_long_meta_tensor_is_read_without_its_memory(path: str) -> None:
    ops.save(path, {"huge": torch.empty(2**40, dtype=torch.uint8, device="meta")})
    parsed = parse(Path(path).read_bytes())
    assert (parsed.version, parsed["huge"].shape, parsed["huge"].data_length) == (5, (2**40,), 0)
    reader = torch.classes.tensorizer.Reader(path, None)
    assert reader.shape("huge") == [2**40]


LOWEST: dict[str, tuple[int, dict[str, torch.Tensor]]] = {
    "nothing": (1, {}),
    "numpy's": (1, {"x": torch.ones(2), "y": torch.ones((), dtype=torch.bool)}),
    "empty": (1, {"x": torch.empty(0)}),
    "empty meta": (1, {"x": torch.empty(3, 0, device="meta")}),
    "0-dimensional meta": (1, {"x": torch.empty((), device="meta")}),
    "almost long": (1, {"x": torch.empty(2**32 - 1, 0)}),
    "opaque": (2, {"x": torch.ones(2), "y": torch.ones(2, dtype=torch.bfloat16)}),
    "opaque and empty": (2, {"y": torch.ones(0, dtype=torch.bfloat16)}),
    "meta": (4, {"x": torch.empty(2, device="meta")}),
    "meta, then opaque": (
        4,
        {"x": torch.empty(2, device="meta"), "y": torch.ones(2, dtype=torch.bfloat16)},
    ),
    "long": (5, {"x": torch.empty(2**32, 0), "y": torch.empty(2, device="meta")}),
}


@pytest.mark.parametrize(("version", "tensors"), LOWEST.values(), ids=LOWEST)
def test_lowest_version_is_written(
    path: str, version: int, tensors: dict[str, torch.Tensor]
) -> None:
    ops.save(path, tensors)
    parsed = parse(Path(path).read_bytes())
    assert parsed.version == version
    assert parsed.flags == (2 if version == 5 else 0)
    writer = torch.classes.tensorizer.Writer(path, None)
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    writer.close()
    assert parse(Path(path).read_bytes()).version == version


def test_parameters_and_buffers(path: str) -> None:
    stored = [
        Block(".own", "<i2", (4,), SHORTS, kind=PARAMETER),
        Block(".taken", "<i2", (4,), SHORTS, kind=BUFFER),
        Block("taken", "<f4", (2, 3), FLOATS, kind=BUFFER, module_index=3),
        Block(".entry", "<f4", (2, 3), FLOATS),
        Block("layer.w", "<f4", (2, 3), FLOATS, kind=PARAMETER, module_index=65535),
    ]
    Path(path).write_bytes(pack(stored))
    # The leading dot is dropped, unless it is part of a state dict key or makes a name unique.
    names = ["own", ".taken", "taken", ".entry", "layer.w"]
    assert ops.names(path) == names
    assert list(ops.load(path, verify="all")) == names
    assert [raw(tensor) for tensor in ops.load_tensors(path, names)] == [
        block.data for block in stored
    ]


@pytest.mark.parametrize(("version", "flags"), [(3, 0), (4, 1), (5, 1), (5, 3)])
def test_encrypted_files_are_told_apart(path: str, version: int, flags: int) -> None:
    no_entries = struct.pack("<H", 0)
    stored = [Block("secret", "<i2", (4,), SHORTS, crypt=no_entries)]
    Path(path).write_bytes(pack(stored, version=version, flags=flags))
    assert ops.names(path) == ["secret"]
    for copy in (False, True):
        with pytest.raises(Crypto, match=r"encrypted"):
            ops.load(path, copy=copy)


def test_files_without_hashes_or_with_one(path: str) -> None:
    for hashes in ((), (0,), (1,), (1, 0)):
        Path(path).write_bytes(pack([Block("x", "<i2", (4,), SHORTS, hashes=hashes)]))
        assert raw(ops.load(path)["x"]) == SHORTS
        if hashes:
            assert raw(ops.load(path, verify="all")["x"]) == SHORTS


def test_no_tensors(path: str) -> None:
    Path(path).write_bytes(pack([]))
    assert ops.load(path) == {}
    assert ops.names(path) == []
    assert blocks()  # the next file is not empty
    Path(path).write_bytes(pack(blocks()))
    assert list(ops.load(path)) == ["a", "b", "c"]
