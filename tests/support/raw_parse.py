"""A parser of the `.tensors` format, written from docs/format.md alone; recomputes the hashes."""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from support.raw_format import CRC32, HASH_SIZES, INDEX_START, LONG_DIMENSIONS, MAGIC, SHA256


@dataclass
class Entry:
    """A tensor as the file describes it, in its index and in its own header."""

    name: bytes
    kind: int
    dtype: bytes
    shape: tuple[int, ...]
    header_offset: int
    data_offset: int
    data_length: int
    long: bool
    header: bytes
    header_name: bytes
    header_dtype: bytes
    header_shape: tuple[int, ...]
    module_index: int
    hashes: dict[int, bytes]
    hash_at: dict[int, int]  # the offset of each hash value in the header
    padding: int
    data: bytes

    def digests(self) -> dict[int, bytes]:
        """Recomputes both hashes."""
        header = bytearray(self.header)
        for kind, at in self.hash_at.items():
            header[at : at + HASH_SIZES[kind]] = bytes(HASH_SIZES[kind])
        return {
            CRC32: struct.pack("<I", zlib.crc32(self.data, zlib.crc32(header))),
            SHA256: hashlib.sha256(bytes(header) + self.data).digest(),
        }


@dataclass
class Parsed:
    version: int
    flags: int
    size_field: int
    index_end: int
    index_tail: bytes
    entries: list[Entry]
    end: int  # the offset after the terminator

    def __getitem__(self, name: bytes | str) -> Entry:
        return next(
            entry
            for entry in self.entries
            if entry.name == (name.encode() if isinstance(name, str) else name)
        )


class _Cursor:
    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def take(self, code: str) -> Any:
        values = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return values[0] if len(values) == 1 else values

    def bytes(self, size: int) -> bytes:
        self.at += size
        assert self.at <= len(self.data)
        return self.data[self.at - size : self.at]

    def shape(self, long: bool) -> tuple[int, ...]:
        return tuple(self.take("Q" if long else "I") for _ in range(self.take("B")))


def parse(data: bytes, start: int = 0) -> Parsed:
    """Parses a well-formed file whose magic is at `start`. Asserts every rule of the format."""
    assert data[start : start + 5] == MAGIC
    top = _Cursor(data, start + 5)
    version = top.take("I")
    flags = int.from_bytes(top.bytes(32), "little")
    size_field, _, count = top.take("QQQ")
    index_end = top.take("Q") + start + INDEX_START
    assert index_end <= len(data)
    entries = []
    expected = index_end
    for _ in range(count):
        long = bool(flags & LONG_DIMENSIONS) and top.take("I") == 5
        name = top.bytes(top.take("H"))
        kind = top.take("B")
        dtype = top.bytes(top.take("B"))
        shape = top.shape(long)
        header_offset, data_offset, data_length = top.take("QQQ")
        assert header_offset == expected, "blocks touch"
        entry = _parse_header(data, header_offset, long)
        assert (entry.kind, entry.data_offset, entry.data_length) == (
            kind,
            data_offset,
            data_length,
        )
        entry.name, entry.dtype, entry.shape = name, dtype, shape
        entries.append(entry)
        expected = data_offset + data_length
    assert top.at <= index_end
    assert data[expected : expected + 8] == bytes(8), "a terminator"
    return Parsed(
        version, flags, size_field, index_end, data[top.at : index_end], entries, expected + 8
    )


def _parse_header(data: bytes, offset: int, long: bool) -> Entry:
    cursor = _Cursor(data, offset)
    length = cursor.take("Q")
    end = offset + length
    module_index, kind = cursor.take("HB")
    name = cursor.bytes(cursor.take("H"))
    dtype = cursor.bytes(cursor.take("B"))
    shape = cursor.shape(long)
    section_end = cursor.take("H") + cursor.at
    hashes, hash_at = {}, {}
    for _ in range(cursor.take("B")):
        hash_kind, size = cursor.take("BB")
        assert HASH_SIZES[hash_kind] == size
        hash_at[hash_kind] = cursor.at - offset
        hashes[hash_kind] = cursor.bytes(size)
    assert cursor.at == section_end
    (data_length,) = struct.unpack_from("<Q", data, end - 8)
    return Entry(
        name=name,
        kind=kind,
        dtype=dtype,
        shape=shape,
        header_offset=offset,
        data_offset=end,
        data_length=data_length,
        long=long,
        header=data[offset:end],
        header_name=name,
        header_dtype=dtype,
        header_shape=shape,
        module_index=module_index,
        hashes=hashes,
        hash_at=hash_at,
        padding=end - 8 - section_end,
        data=data[end : end + data_length],
    )
