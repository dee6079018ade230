"""Invalid indexes. Each ends in one clear error with the tensor's name and the offset."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.process import feed
from support.raw_format import INDEX_START, Block, pack, pack_header
from support.raw_parse import parse
from support.specimen import FLOATS, SHORTS, blocks, from_bytes
from tensorizer_ops.errors import InvalidFormat

ops = torch.ops.tensorizer


def index(**fields: Any) -> list[Block]:
    return blocks(index=fields)


def both(**fields: Any) -> list[Block]:
    return blocks(index=fields, header=fields)


def refused(path: str, data: bytes) -> str:
    """Asserts that every way to open a file raises the same error, and returns its message."""
    Path(path).write_bytes(data)
    with pytest.raises(InvalidFormat) as caught:
        ops.load(path)
    message = str(caught.value)
    for again in (
        lambda: ops.load(path, copy=True),
        lambda: ops.load(path, names=["a"]),
        lambda: ops.load_tensors(path, ["c"]),
        lambda: ops.load_into(path, ["a"], [torch.zeros(2, 3)]),
        lambda: ops.names(path),
        lambda: ops.verify(path),
        lambda: torch.classes.tensorizer.Reader(path, None).names(),
        lambda: from_bytes(data or b"?").names(),
    ):
        with pytest.raises(InvalidFormat):
            again()
    return message


def says_where(message: str, name: str) -> bool:
    return f"tensor '{name}'" in message and re.search(r"offset \d+", message) is not None


NAMES: dict[str, bytes] = {
    "empty": b"",
    "not UTF-8": b"\xff\xfe",
    "cut UTF-8": b"ab\xe2\x82",
    "surrogate": b"\xed\xa0\x80",
    "overlong": b"\xc0\x80",
    "mark alone": b"\x1e",
    "no steps": b"\x1e[]",
    "unclosed": b'\x1e["a"',
    "trailing comma": b'\x1e["x",]',
    "negative": b"\x1e[-1]",
    "fraction": b"\x1e[1.5]",
    "exponent": b"\x1e[1e3]",
    "huge integer": b"\x1e[1" + b"0" * 300 + b"]",
    "leading zero": b"\x1e[01]",
    "boolean": b"\x1e[true]",
    "null": b"\x1e[null]",
    "object": b'\x1e{"x":1}',
    "text after": b'\x1e["x"] y',
    "line feed": b'\x1e["x",\n"y"]',
    "carriage return": b'\x1e["x",\r"y"]',
    "half a pair": b'\x1e["\\ud800"]',
    "bad escape": b'\x1e["\\q"]',
    "raw control": b'\x1e["\x01"]',
    "bytes in JSON": b'\x1e["\xff"]',
    "deep": b"\x1e" + b"[" * 60000,
}
DTYPES: dict[str, bytes] = {
    "empty": b"",
    "no such size": b"<f3",
    "big-endian": b">i2",
    "object": b"|O",
    "text": b"<U4",
    "datetime": b"<M8[ns]",
    "structured": b"[('a', '<i2')]",
    "not UTF-8": b"\xff\xff",
    "opaque without type": b"<V2\0",
    "opaque unknown": b"<V2\0torch.nothing",
    "opaque wrong size": b"|V1\0torch.bfloat16",
    "opaque but numpy has it": b"<V2\0torch.int16",
    "opaque outside torch": b"<V2\0builtins.exec",
    "quantized": b"|V1\0torch.qint8",
    "suffix": b"<i2\0torch.int16",
}
PLACES: dict[str, dict[str, Any]] = {
    "header at 0": {"header_offset": 0},
    "header in the file header": {"header_offset": 64},
    "header in the index": {"header_offset": INDEX_START + 1},
    "header in the tensor before": {"header_offset": lambda right: right - 1},
    "header past the end": {"header_offset": 10**6, "data_offset": 10**6 + 99},
    "header past 2^63": {"header_offset": 2**63},
    "header at 2^64 - 1": {"header_offset": 2**64 - 1},
    "data before its header": {"data_offset": lambda right: right - 99},
    "data at its header": {"data_offset": lambda right: right - len(pack_header(blocks()[1]))},
    "no room for a header": {
        "data_offset": lambda right: right - len(pack_header(blocks()[1])) + 8
    },
    "data past the end": {"data_offset": 10**6},
    "data past 2^63": {"data_offset": 2**63},
    "data end overflows": {"data_offset": 2**64 - 4},
    "one byte more": {"data_length": 9},
    "one byte less": {"data_length": 7},
    "no data in version 1": {"data_length": 0},
    "data length of 2^63": {"data_length": 2**63},
    "data length of 2^64 - 1": {"data_length": 2**64 - 1},
    "shape of more": {"shape": (5,)},
    "shape of less": {"shape": (3,)},
    "shape overflows": {"shape": (2**32 - 1,) * 4},
    # 2**64 + 4 elements of 2 bytes are 8 bytes modulo 2**64.
    "shape overflows to the right size": {"shape": (20 * 5581, 8681 * 49477, 384773)},
    "shape of 255 dimensions": {"shape": (2**32 - 1,) * 255},
    "empty, strides overflow": {"shape": (2**32 - 1,) * 3 + (0,), "data_length": 0},
    "kind 3": {"kind": 3},
    "kind 255": {"kind": 255},
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_bad_names(path: str, name: bytes) -> None:
    message = refused(path, pack(both(name=name)))
    assert "tensor '" in message
    assert re.search(r"offset \d+", message)
    assert len(message) < 1500
    message.encode()  # printable for any name


def test_nested_names_are_for_state_dicts(path: str) -> None:
    for kind in (0, 1):
        data = pack(blocks(name=b'\x1e["x",0]', kind=kind))
        assert "tensor '\\x1e[\"x\",0]'" in refused(path, data)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_unknown_dtypes(path: str, dtype: bytes) -> None:
    assert says_where(refused(path, pack(both(dtype=dtype))), "b")


@pytest.mark.parametrize("fields", PLACES.values(), ids=PLACES)
def test_wrong_places_and_sizes(path: str, fields: dict[str, Any]) -> None:
    assert says_where(refused(path, pack(index(**fields))), "b")


def test_two_tensors_at_one_place(path: str) -> None:
    twin = blocks(dtype="<f4", shape=(2, 3), data=FLOATS)
    first = parse(pack(twin)).entries[0]
    twin[1].index = {"header_offset": first.header_offset, "data_offset": first.data_offset}
    message = refused(path, pack(twin))
    assert says_where(message, "b")
    assert "'a'" in message


CONFLICTS: dict[str, tuple[str, str]] = {
    "twice": ("x", "x"),
    "nested twice": ('\x1e["x",0]', '\x1e["x",0]'),
    "spelled in two ways": ('\x1e["x",0]', '\x1e[ "x" , 0 ]'),
    "escaped in two ways": ('\x1e["x","y"]', '\x1e["\\u0078","y"]'),
    "plain and nested": ("x", '\x1e["x"]'),
    "inside": ("x", '\x1e["x","y"]'),
    "inside, deeper": ('\x1e["x","y"]', '\x1e["x","y",0,"z"]'),
    "list and mapping": ('\x1e["x",0]', '\x1e["x","y"]'),
    "root list and mapping": ("\x1e[0]", '\x1e["x"]'),
    "root list and plain": ("\x1e[0]", "x"),
}


@pytest.mark.parametrize("names", CONFLICTS.values(), ids=CONFLICTS)
@pytest.mark.parametrize("swap", [False, True])
def test_conflicting_names(path: str, names: tuple[str, str], swap: bool) -> None:
    pair = [Block(name, "<i2", (4,), SHORTS) for name in names]
    Path(path).write_bytes(pack(reversed(pair) if swap else pair))
    with pytest.raises(InvalidFormat) as caught:
        ops.names(path)
    assert str(caught.value).count("tensor '") == 2
    assert re.search(r"offset \d+", str(caught.value))


TOPS: dict[str, dict[str, Any]] = {
    "magic": {"magic": b"|TZR!"},
    "version 0": {"version": 0},
    "version 6": {"version": 6},
    "version 2^32 - 1": {"version": 2**32 - 1},
    "encrypted flag in version 1": {"flags": 1},
    "long flag in version 4": {"version": 4, "flags": 2},
    "flag 2": {"version": 5, "flags": 4},
    "flag 255": {"version": 5, "flags": 1 << 255},
    "one tensor more": {"count": 4},
    "a billion tensors": {"count": 10**9},
    "2^64 - 1 tensors": {"count": 2**64 - 1},
    "no index": {"index_length": 0},
    "index cut in its last entry": {"index_length": lambda right: right - 1},
    "index past the end": {"index_length": 10**6},
    "index of 2^63": {"index_length": 2**63},
    "index of 2^64 - 1": {"index_length": 2**64 - 1},
    "index of 2^64 - 73": {"index_length": 2**64 - 73},
    "record past the index": {"index_tail": b"|TZX|\x07\x00\xff\xff\xff\xff", "index_size": 1000},
}


@pytest.mark.parametrize("wrong", TOPS.values(), ids=TOPS)
def test_wrong_file_headers(path: str, wrong: dict[str, Any]) -> None:
    message = refused(path, pack(blocks(), **wrong))
    assert re.search(r"offset \d+", message)
    assert path in message


@pytest.mark.parametrize("version", [0, 2, 4, 6, 2**32 - 1])
def test_unknown_entry_versions(path: str, version: int) -> None:
    assert "index entry 1" in refused(path, pack(index(version=version), version=5))


def test_long_dimensions_that_overflow(path: str) -> None:
    for shape in [(2**63,), (2**62, 2), (2**64 - 1, 0), (2**40, 2**40, 0), (2**32,) * 2]:
        data = pack(blocks(shape=shape, data=b"", long=True), version=5)
        assert says_where(refused(path, data), "b"), shape


# Each stored size is one that a file may claim. After the cast, it exceeds 2**64, and is small
# modulo 2**64.
CASTS: dict[str, tuple[dict[str, Any], int, torch.dtype]] = {
    "float8 to float32": (
        {"dtype": b"|V1\0torch.float8_e4m3fn", "shape": (2**62 + 2**18,), "long": True},
        5,
        torch.float32,
    ),
    "float16 to float64": (
        {"dtype": "<f2", "shape": (2**17, 17 * 353, 2931542417)},
        4,
        torch.float64,
    ),
}


@pytest.mark.parametrize(("fields", "version", "dtype"), CASTS.values(), ids=CASTS)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_shapes_that_overflow_as_another_type(
    path: str, fields: dict[str, Any], version: int, dtype: torch.dtype, device: str
) -> None:
    data = pack(blocks(data=b"", **fields), version=version)
    Path(path).write_bytes(data)
    assert ops.load(path, device="meta")["b"].shape == fields["shape"]
    for load in (
        lambda: ops.load(path, dtype=dtype, device=device),
        lambda: ops.load_tensors(path, ["b"], dtype=dtype, device=device),
        lambda: tensorizer_ops.load(path, dtype=dtype, device=device),
    ):
        with pytest.raises(InvalidFormat, match=r"tensor 'b'.* bytes"):
            load()


def test_shapes_that_overflow_as_another_type_in_a_stream(tmp_path: Path) -> None:
    """The file lacks the claimed data, or only the tensor's header has the name of the dtype."""
    fields, version, dtype = CASTS["float8 to float32"]
    opaque = pack(blocks(data=b"", index={"dtype": "|V1"}, **fields), version=version)
    halves = {"dtype": "<f2", "shape": (2**61 + 2**17,), "long": True}
    claimed = blocks(data=b"", index={"data_length": 2**62 + 2**18}, **halves)[:2]
    for number, (data, wanted) in enumerate(
        [(opaque, dtype), (pack(claimed, version=5), torch.float64)]
    ):
        fifo = str(tmp_path / str(number))
        with feed(fifo, data), pytest.raises(InvalidFormat, match=r"tensor 'b'.* bytes"):
            ops.load(fifo, dtype=wanted)
