"""The format's encryption, written from docs/format.md with libsodium's own functions."""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import hmac
import os
import struct

from support.raw_format import INDEX_START

CHUNK = 2 << 20
NONCE_SIZE = 24
MAC_SIZE = 16

_sodium = ctypes.CDLL(ctypes.util.find_library("sodium") or "libsodium.so.23")


def secretbox(key: bytes, nonce: bytes, plain: bytes) -> tuple[bytes, bytes]:
    """Returns the ciphertext and its MAC."""
    out = ctypes.create_string_buffer(len(plain))
    mac = ctypes.create_string_buffer(MAC_SIZE)
    size = ctypes.c_ulonglong(len(plain))
    assert _sodium.crypto_secretbox_detached(out, mac, plain, size, nonce, key) == 0
    return out.raw, mac.raw


def next_nonce(nonce: bytes, count: int) -> bytes:
    number = int.from_bytes(nonce, "little") + count
    return (number % (1 << 8 * NONCE_SIZE)).to_bytes(NONCE_SIZE, "little")


def _entry(kind: int, body: bytes) -> bytes:
    return struct.pack("<QH", len(body) + 2, kind) + body


def derivation(passes: int, memory: int, salt: bytes) -> bytes:
    return struct.pack("<HQQiH", 1, passes, memory, 2, len(salt)) + salt


def crypt_info(*entries: bytes) -> bytes:
    return struct.pack("<H", len(entries)) + b"".join(entries)


def chunked(
    key: bytes, plain: bytes, chunk: int = CHUNK, nonce: bytes | None = None
) -> tuple[bytes, bytes]:
    """Returns the ciphertext and its entry in the crypt info."""
    nonce = os.urandom(NONCE_SIZE) if nonce is None else nonce
    out, macs = b"", b""
    for number, begin in enumerate(range(0, len(plain), chunk)):
        piece, mac = secretbox(key, next_nonce(nonce, number), plain[begin : begin + chunk])
        out += piece
        macs += mac
    body = struct.pack("<Q", chunk) + nonce + struct.pack("<Q", len(macs) // MAC_SIZE) + macs
    return out, _entry(2, body)


def sequential(key: bytes, plain: bytes) -> tuple[bytes, bytes]:
    nonce = os.urandom(NONCE_SIZE)
    out, mac = secretbox(key, nonce, plain)
    return out, _entry(3, nonce + mac)


def derivation_entry(body: bytes) -> bytes:
    return _entry(1, body)


def metadata_mac(key: bytes, before: bytes) -> bytes:
    """Returns the MAC of everything that precedes the MAC in the file."""
    own = hmac.digest(key, b"tensorizer_ops metadata 1", "sha256")
    return hmac.digest(own, before, "sha256")


def authentication(data: bytes, index_tail: bytes, key: bytes, headers: list[bytes]) -> bytes:
    """Returns the file with its record. `index_tail`: the zeros after the last index entry."""
    body = struct.pack("<H", 0) + b"".join(hashlib.sha256(header).digest() for header in headers)
    record = b"|TZX|" + struct.pack("<HI", 1, len(body) + 32) + body
    index_end = INDEX_START + struct.unpack_from("<Q", data, INDEX_START - 8)[0]
    at = index_end - len(index_tail)
    before = data[:at] + record
    assert len(record) + 32 <= len(index_tail) and not any(index_tail)
    return (before + metadata_mac(key, before)).ljust(index_end, b"\0") + data[index_end:]


def without_records(data: bytes) -> bytes:
    """Returns the file with its records overwritten by zeros."""
    begin = data.index(b"|TZX|")
    end = INDEX_START + struct.unpack_from("<Q", data, INDEX_START - 8)[0]
    return data[:begin] + bytes(end - begin) + data[end:]
