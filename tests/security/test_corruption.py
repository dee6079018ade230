"""Truncated and changed files, headers that contradict the index, and huge declared sizes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from support.process import feed, fork_python
from support.raw_format import pack
from support.raw_parse import parse
from support.samples import raw
from support.specimen import SHORTS, blocks, from_bytes, load_all
from tensorizer_ops.errors import Error, HashMismatch, InvalidFormat

ops = torch.ops.tensorizer


def test_truncated_anywhere(path: str) -> None:
    whole = pack(blocks(), index_size=200)
    end = parse(whole).end - 8
    for size in range(end):
        Path(path).write_bytes(whole[:size])
        with pytest.raises(InvalidFormat):
            ops.load(path)
        with pytest.raises(InvalidFormat):
            ops.load(path, copy=True)
        with pytest.raises(InvalidFormat):
            load_all(from_bytes(whole[:size] or b"|"))


HEADERS: dict[str, dict[str, Any]] = {
    "length 0": {"length": 0},
    "length less": {"length": lambda right: right - 1},
    "length more": {"length": lambda right: right + 1},
    "length 2^64 - 1": {"length": 2**64 - 1},
    "another name": {"name": "z"},
    "a longer name": {"name": "bb" * 30000},
    "name not UTF-8": {"name": b"\xff"},
    "another kind": {"kind": 0},
    "another dtype of the same size": {"dtype": "<u2"},
    "unknown dtype": {"dtype": "<f3"},
    "another shape": {"shape": (2, 2)},
    "a shape of more": {"shape": (5,)},
    "too many dimensions": {"shape": (1,) * 255},
    "data length less": {"data_length": 7},
    "data length more": {"data_length": 9},
    "data length negative": {"data_length": -1},
    "hash section past the end": {"hash_section_length": 65535},
    "hash section cut": {"hash_section_length": 10},
    "hash count too high": {"hash_count": 3},
    "unknown hash": {"hashes": b"\x01\x09\x04abcd"},
    "CRC32 of 5 bytes": {"hashes": b"\x01\x00\x05abcde"},
    "SHA-256 of 31 bytes": {"hashes": b"\x01\x01\x1f" + bytes(31)},
    "hash past its section": {"hashes": b"\x01\x01\xff" + bytes(31)},
}


@pytest.mark.parametrize("fields", HEADERS.values(), ids=HEADERS)
def test_headers_that_disagree(path: str, fields: dict[str, Any]) -> None:
    Path(path).write_bytes(pack(blocks(header=fields)))
    for attempt in (
        lambda: ops.verify(path),
        lambda: ops.load(path, verify="all"),
        lambda: ops.load(path, verify="crc32", copy=True),
        lambda: ops.load_tensors(path, ["b"], verify="all"),
        lambda: ops.load_into(path, ["b"], [torch.zeros(4, dtype=torch.int16)], verify="all"),
    ):
        with pytest.raises(InvalidFormat) as caught:
            attempt()
        assert "tensor 'b'" in str(caught.value)
        assert re.search(r"offset \d+", str(caught.value))
    # The tensors next to it are intact.
    assert bytes(ops.load_tensors(path, ["c"], verify="all")[0].tolist()) == b"hello"


def test_every_changed_byte_of_a_tensor_is_found() -> None:
    whole = pack(blocks(padding=9))
    parsed = parse(whole)
    for offset in range(parsed.index_end, parsed.end - 8):
        for mask in (1, 0x80, 0xFF):
            data = bytearray(whole)
            data[offset] ^= mask
            with pytest.raises((InvalidFormat, HashMismatch)):
                load_all(from_bytes(data), verify="all")


def test_no_changed_byte_of_the_index_does_harm() -> None:
    for version in (1, 4, 5):
        whole = pack(blocks(long=version == 5), version=version, index_size=160)
        for offset in range(parse(whole).index_end):
            for change in (lambda b: 0, lambda b: 0xFF, lambda b: b ^ 0x80, lambda b: b + 1):
                data = bytearray(whole)
                data[offset] = change(data[offset]) & 0xFF
                try:
                    loaded = load_all(from_bytes(data))
                except Error as error:
                    assert str(error)
                else:
                    assert sum(len(raw(tensor)) for tensor in loaded.values()) <= len(data)


def test_what_must_not_be_trusted_is_not(path: str) -> None:
    for data in (
        pack(blocks(), size_field=2**64 - 1),
        pack(blocks(), size_field=0),
        pack(blocks()) + b"an older, longer file" * 100,
        pack(blocks(padding=12345)),
        pack(blocks(name=b'\x1e [\t"x" , 0 ] ')),
    ):
        Path(path).write_bytes(data)
        loaded = list(ops.load(path, verify="all").values())
        assert bytes(loaded[1].view(torch.uint8).tolist()) == SHORTS
        assert bytes(loaded[2].tolist()) == b"hello"


HUGE: dict[str, bytes] = {
    "a billion entries": pack(blocks(), count=10**9, index_size=1024),
    "an index of 1 TiB": pack(blocks(), index_length=2**40),
    "an index of 8 EiB": pack(blocks(), index_length=2**63 - 1000),
    "a billion entries in 1 TiB": pack(blocks(), count=10**9, index_length=2**40),
    "a tensor of 1 TiB": pack(
        blocks(index={"data_length": 2**40, "shape": (2**31, 2**8)}, dtype="<i2")
    ),
    "a header of 1 TiB": pack(blocks(index={"data_offset": 2**40})),
}

LOAD_HUGE = """
import resource, sys, threading, time, torch, tensorizer_ops
ops = torch.ops.tensorizer
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * 4096 + (512 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
def peak():
    return int([l for l in open("/proc/self/status") if l.startswith("VmHWM")][0].split()[1]) >> 10
before = peak()
for uri in sys.argv[1:]:
    for attempt in (ops.names, ops.load, ops.verify):
        began = time.process_time()
        try:
            attempt(uri)
        except ValueError as error:
            assert isinstance(error, tensorizer_ops.errors.InvalidFormat), error
        else:
            raise AssertionError(uri)
        assert time.process_time() - began < 2
assert peak() - before < 100, peak() - before
"""


def test_declared_sizes_allocate_nothing(tmp_path: Path) -> None:
    paths = []
    for number, data in enumerate(HUGE.values()):
        paths.append(str(tmp_path / f"{number}.tensors"))
        Path(paths[-1]).write_bytes(data)
    fork_python(LOAD_HUGE, *paths)


@pytest.mark.parametrize("data", HUGE.values(), ids=HUGE)
def test_declared_sizes_from_a_pipe_end_in_an_error(tmp_path: Path, data: bytes) -> None:
    # The size of a pipe is unknown, so the error comes at its end, or from the allocator.
    fifo = str(tmp_path / "fifo")
    with feed(fifo, data), pytest.raises((ValueError, RuntimeError, MemoryError)):
        ops.load(fifo)
