"""A flipped bit in a file header: a load returns all of the tensors or raises an error."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorizer import EncryptionParams, TensorSerializer

import tensorizer_ops
from support.process import feed
from support.raw_format import INDEX_START, Block, pack
from support.raw_parse import parse
from support.samples import raw, sample
from support.specimen import blocks, from_bytes
from tensorizer_ops.errors import Error, InvalidFormat

ops = torch.ops.tensorizer

KEY = bytes(range(3, 35))
COUNT_AT, INDEX_SIZE_AT = 57, 65
TENSORS = {f"layer.{i}.weight": sample(torch.float32, (i + 1, 3), i) for i in range(5)}
NESTED = {"a": {"b": [torch.ones(2), torch.zeros(3)]}, "c": torch.arange(4)}


@pytest.fixture(autouse=True)
def key() -> Iterator[None]:
    tensorizer_ops.keys.add("damaged", key=KEY)
    yield
    tensorizer_ops.keys.remove("damaged")


def classic(path: str, tensors: Any = TENSORS, **options: Any) -> None:
    serializer = TensorSerializer(path, **options)
    serializer.write_state_dict(tensors)
    serializer.close()


def handwritten(**options: Any) -> Callable[[str], None]:
    return lambda path: (Path(path).write_bytes(pack(blocks(), **options)), None)[1]


LONG = [Block("x", "<f4", (2**33, 0), long=True), *blocks()]
ENCRYPTED = {"key": "named:damaged"}
FILES: dict[str, tuple[Callable[[str], object], dict[str, str]]] = {
    "saved": (lambda path: ops.save(path, TENSORS), {}),
    "saved with digests": (lambda path: ops.save(path, TENSORS, options={"digests": "true"}), {}),
    "saved encrypted": (lambda path: ops.save(path, TENSORS, options=ENCRYPTED), ENCRYPTED),
    "of tensorizer": (classic, {}),
    "of tensorizer, opaque": (
        lambda path: classic(path, {"a": torch.ones(3, dtype=torch.bfloat16), "b": torch.ones(2)}),
        {},
    ),
    "of tensorizer, nested": (lambda path: classic(path, NESTED), {}),
    "of tensorizer, encrypted": (
        lambda path: classic(path, encryption=EncryptionParams(KEY)),
        ENCRYPTED,
    ),
    "of tensorizer, meta": (
        lambda path: classic(path, {"a": torch.ones(3, device="meta"), "b": torch.ones(2)}),
        {},
    ),
    "as release 1.0.1 wrote it": (handwritten(index_size=256 << 10), {}),
    "without any room": (handwritten(), {}),
    "long dimensions, without any room": (
        lambda path: Path(path).write_bytes(pack(LONG, version=5)),
        {},
    ),
}


@pytest.fixture(params=FILES.values(), ids=FILES)
def saved(request: pytest.FixtureRequest, path: str) -> tuple[bytes, dict[str, str]]:
    save, options = request.param
    save(path)
    return Path(path).read_bytes(), options


def load(path: str, options: dict[str, str]) -> dict[str, bytes]:
    return {name: raw(t) for name, t in ops.load(path, copy=True, options=options).items()}


def test_a_flipped_bit_of_the_file_header(path: str, saved: tuple[bytes, dict[str, str]]) -> None:
    whole, options = saved
    expected = load(path, options)
    counted = range(COUNT_AT, INDEX_START)
    for offset in range(INDEX_START):
        for bit in range(8):
            data = bytearray(whole)
            data[offset] ^= 1 << bit
            with open(path, "r+b") as file:
                file.write(data[:INDEX_START])
            try:
                assert load(path, options) == expected, (offset, bit)
                assert offset not in counted, (offset, bit)
            except Error:
                pass


def test_every_other_number_of_tensors(path: str, saved: tuple[bytes, dict[str, str]]) -> None:
    whole, options = saved
    right = len(load(path, options))
    for count in {*range(right + 3), 2 * right} - {right}:
        data = bytearray(whole)
        struct.pack_into("<Q", data, COUNT_AT, count)
        Path(path).write_bytes(data)
        for attempt in (
            lambda: ops.names(path, options=options),
            lambda: ops.load(path, options=options),
            lambda: ops.verify(path, options=options),
        ):
            with pytest.raises(InvalidFormat, match=r"offset \d+|tensors are declared"):
                attempt()


def test_a_count_that_is_too_low_says_what_may_be_missing(path: str) -> None:
    whole = bytearray(pack(blocks(), index_size=256 << 10))
    second = whole.index(b"\x01\x00b", INDEX_START)
    struct.pack_into("<Q", whole, COUNT_AT, 1)
    message = f"behind the 1 index entries .* at offset {second}: .* may hold more tensors"
    with pytest.raises(InvalidFormat, match=message):
        from_bytes(whole).names()


def test_bytes_between_the_index_and_the_first_tensor(path: str) -> None:
    gap = blocks()
    gap[0].gap = 8
    Path(path).write_bytes(pack(gap))
    with pytest.raises(InvalidFormat, match=r"tensor 'a' .*does not begin where the index ends"):
        ops.load(path)


def without_last(size: int) -> bytes:
    """Returns a file whose index omits the last tensor. `size`: the bytes of its first tensor."""
    stored = [Block("a", "|u1", (size,), bytes(size)), *blocks()[1:]]
    whole = bytearray(pack(stored, index_size=4096 - INDEX_START))
    parsed = parse(whole)
    entry = whole.index(b"\x01\x00c", INDEX_START)
    whole[entry : parsed.index_end] = bytes(parsed.index_end - entry)
    struct.pack_into("<Q", whole, COUNT_AT, len(stored) - 1)
    return bytes(whole)


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_a_tensor_where_the_file_should_end(path: str, size: int) -> None:
    Path(path).write_bytes(without_last(size))
    with pytest.raises(InvalidFormat, match=r"behind the last tensor of its index, at offset \d+"):
        ops.load(path)
    if size == 100:  # the first read for the index includes all of it
        with pytest.raises(Exception, match="behind the last tensor of its index"):
            from_bytes(without_last(size)).names()


def test_the_end_of_a_pipe_is_not_waited_for(path: str) -> None:
    data = pack(blocks(), terminator=b"")
    with feed(path, data):
        assert ops.names(path) == ["a", "b", "c"]


def test_shorter_files_written_over_longer_ones(tmp_path: Path) -> None:
    target = tmp_path / "model.tensors"
    many = {f"tensor.{i}": torch.full((300,), float(i)) for i in range(3000)}
    few = {"x": torch.ones(3)}
    ops.save(str(target), many, options={"digests": "true"})
    longest = target.stat().st_size
    with target.open("r+b") as file:
        ops.save(f"fd:{file.fileno()}", few)
    assert list(ops.load(str(target), verify="all")) == ["x"]
    ops.save(str(target), many, options={"digests": "true"})
    with target.open("r+b") as file:
        writer = torch.classes.tensorizer.Writer(f"fd:{file.fileno()}", None)
        for name, tensor in few.items():
            writer.add(name, tensor)
        writer.close()
    assert target.stat().st_size == longest
    assert list(ops.load(str(target), verify="all")) == ["x"]
    # The same with serializers, which write to a file that the caller opened.
    for serializer in (TensorSerializer, tensorizer_ops.serialization.TensorSerializer):
        ops.save(str(target), many, options={"digests": "true"})
        with target.open("r+b") as file:
            serializing = serializer(file)
            serializing.write_state_dict(few)
            serializing.close()
        assert list(ops.load(str(target), verify="all")) == ["x"]
