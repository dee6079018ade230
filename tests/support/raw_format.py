"""A writer of the `.tensors` format that follows docs/format.md and uses nothing of the library.

Tests judge the library by it, so it shares no code with the library. It can write any field wrong:
an override is either the wrong value or a function from the right value to the wrong one.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

MAGIC = b"|TZR|"
HEADER_SIZE = 65
INDEX_START = HEADER_SIZE + 8
CRC32, SHA256 = 0, 1
PARAMETER, BUFFER, STATE_DICT = 0, 1, 2
HASH_SIZES = {CRC32: 4, SHA256: 32}
LONG_DIMENSIONS = 2  # the flag bit of version 5 files


@dataclass
class Block:
    """A tensor to write. `index` and `header` override fields of its index entry and its header."""

    name: bytes | str
    dtype: bytes | str
    shape: tuple[int, ...]
    data: bytes = b""
    kind: int = STATE_DICT
    module_index: int = 0
    hashes: tuple[int, ...] = (CRC32, SHA256)
    crypt: bytes | None = None  # the crypt info; None if the file is not encrypted
    long: bool = False
    padding: int = 0
    gap: int = 0  # bytes between the previous block and this header
    index: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)


def _text(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _str16(value: bytes | str) -> bytes:
    return struct.pack("<H", len(_text(value))) + _text(value)


def _str8(value: bytes | str) -> bytes:
    return struct.pack("<B", len(_text(value))) + _text(value)


def _shape(shape: tuple[int, ...], long: bool) -> bytes:
    return struct.pack("<B", len(shape)) + struct.pack(
        f"<{len(shape)}{'Q' if long else 'I'}", *shape
    )


def _choose(overrides: dict[str, Any], key: str, right: Any) -> Any:
    value = overrides.get(key, right)
    return value(right) if callable(value) else value


def pack_header(block: Block) -> bytes:
    """Returns a tensor header with its hashes filled in."""

    def choose(key: str, right: Any) -> Any:
        return _choose(block.header, key, right)

    values = b"".join(
        struct.pack("<BB", kind, HASH_SIZES[kind]) + bytes(HASH_SIZES[kind])
        for kind in block.hashes
    )
    section = struct.pack("<B", choose("hash_count", len(block.hashes))) + values
    section = choose("hashes", section)
    before = (
        struct.pack("<HB", block.module_index, choose("kind", block.kind))
        + _str16(choose("name", block.name))
        + _str8(choose("dtype", block.dtype))
        + _shape(choose("shape", block.shape), choose("long", block.long))
        + struct.pack("<H", choose("hash_section_length", len(section)))
    )
    crypt = b"" if block.crypt is None else struct.pack("<Q", len(block.crypt)) + block.crypt
    length = 8 + len(before) + len(section) + len(crypt) + block.padding + 8
    header = bytearray(
        struct.pack("<Q", choose("length", length) % 2**64)
        + before
        + section
        + bytes(block.padding)
        + struct.pack("<Q", choose("data_length", len(block.data)) % 2**64)
    )
    digests = {
        CRC32: struct.pack("<I", zlib.crc32(block.data, zlib.crc32(header))),
        SHA256: hashlib.sha256(bytes(header) + block.data).digest(),
    }
    at = 8 + len(before) + 1
    for kind in () if "hashes" in block.header else block.hashes:
        wrong = _choose(block.header, "digest", digests[kind])
        header[at + 2 : at + 2 + HASH_SIZES[kind]] = wrong
        at += 2 + HASH_SIZES[kind]
    crypt_at = 8 + len(before) + len(section)
    return bytes(header[:crypt_at]) + crypt + bytes(header[crypt_at:])


def _pack_entry(block: Block, header_offset: int, header_length: int, versioned: bool) -> bytes:
    def choose(key: str, right: Any) -> Any:
        return _choose(block.index, key, right)

    entry = (
        _str16(choose("name", block.name))
        + struct.pack("<B", choose("kind", block.kind))
        + _str8(choose("dtype", block.dtype))
        + _shape(choose("shape", block.shape), choose("long", block.long))
        + struct.pack(
            "<QQQ",
            choose("header_offset", header_offset) % 2**64,
            choose("data_offset", header_offset + header_length) % 2**64,
            choose("data_length", len(block.data)) % 2**64,
        )
    )
    if versioned:
        entry = struct.pack("<I", choose("version", 5 if block.long else 1)) + entry
    return entry


def pack(
    blocks: Iterable[Block],
    *,
    version: int = 1,
    flags: int | None = None,
    count: int | Callable[[int], int] | None = None,
    index_length: int | Callable[[int], int] | None = None,
    index_size: int = 0,
    index_tail: bytes = b"",
    start: int = 0,
    magic: bytes = MAGIC,
    size_field: int | None = None,
    terminator: bytes = bytes(8),
) -> bytes:
    """Returns a whole file. `start` is the offset that its magic will have, `index_size` the
    minimum size of the index, `index_tail` the bytes after the last entry inside the index."""
    blocks = list(blocks)
    if flags is None:
        flags = LONG_DIMENSIONS if version >= 5 else 0
    versioned = bool(flags & LONG_DIMENSIONS)
    headers = [pack_header(block) for block in blocks]
    entries_size = sum(len(_pack_entry(block, 0, 0, versioned)) for block in blocks)
    body_size = max(entries_size + len(index_tail), index_size)
    offset = start + INDEX_START + body_size
    entries = b""
    body = b""
    for block, header in zip(blocks, headers, strict=True):
        body += bytes(block.gap)
        offset += block.gap
        entries += _pack_entry(block, offset, len(header), versioned)
        body += header + block.data
        offset += len(header) + len(block.data)
    index = (entries + index_tail).ljust(body_size, b"\0")

    def final(value: int | Callable[[int], int] | None, right: int) -> int:
        if value is None:
            return right
        return value(right) if callable(value) else value

    if size_field is None:
        size_field = sum(len(block.data) for block in blocks)
    return (
        magic
        + struct.pack("<I", version)
        + flags.to_bytes(32, "little")
        + struct.pack("<QQQ", size_field, 0, final(count, len(blocks)))
        + struct.pack("<Q", final(index_length, len(index)))
        + index
        + body
        + terminator
    )
