"""What the metadata record of an encrypted file protects, and what is unprotected without it."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.raw_crypt import authentication, chunked, crypt_info, metadata_mac, without_records
from support.raw_format import INDEX_START, Block, pack, pack_header
from support.samples import assert_same
from tensorizer_ops.errors import Crypto, Error

ops = torch.ops.tensorizer

KEY = bytes(range(7, 39))
OPTIONS = {"key": "named:authentication"}
STRICT = OPTIONS | {"require_authenticated": "true"}
TENSORS = {
    "aa": torch.arange(100.0).reshape(10, 10),
    "bb": torch.arange(100.0, 200.0).reshape(10, 10),
    "cc": torch.arange(5),
}
MAGIC = b"|TZX|"


@pytest.fixture(autouse=True)
def key() -> Iterator[None]:
    tensorizer_ops.keys.add("authentication", key=KEY)
    yield
    tensorizer_ops.keys.remove("authentication")


def saved(path: str, tensors: dict[str, torch.Tensor] = TENSORS) -> bytearray:
    ops.save(path, tensors, hashes="none", options=OPTIONS)
    return bytearray(Path(path).read_bytes())


class Entry:
    """The offsets of a tensor's index entry, header and data."""

    def __init__(self, data: bytes, name: str) -> None:
        needle = struct.pack("<H", len(name)) + name.encode()
        self.begin = data.index(needle, INDEX_START)
        at = self.begin + len(needle) + 1
        at += 1 + data[at]
        self.shape_at = at + 1
        self.offsets_at = self.shape_at + 4 * data[at]
        self.end = self.offsets_at + 24
        self.header, self.data, self.size = struct.unpack_from("<QQQ", data, self.offsets_at)
        # In the header, the type precedes the name.
        self.name_in_header = data.index(needle, self.header)
        self.shape_in_header = self.name_in_header + self.shape_at - self.begin - 1
        # From the hash section on, without padding: everything that the index does not repeat.
        self.crypt_at = self.name_in_header + self.offsets_at - self.begin - 1
        (size,) = struct.unpack_from("<Q", data, self.crypt_at + 3)
        self.crypt_end = self.crypt_at + 11 + size

    def move(self, data: bytes, to: Entry, target: bytearray) -> None:
        """Copies the data and its crypt info over those of another tensor."""
        assert self.size == to.size
        target[to.crypt_at : to.crypt_end] = data[self.crypt_at : self.crypt_end]
        target[to.data : to.data + to.size] = data[self.data : self.data + self.size]


def swap(data: bytearray, other: bytearray) -> None:
    a, b, before = Entry(data, "aa"), Entry(data, "bb"), bytes(data)
    a.move(before, b, data)
    b.move(before, a, data)


def splice(data: bytearray, other: bytearray) -> None:
    Entry(other, "aa").move(bytes(other), Entry(data, "aa"), data)


def duplicate(data: bytearray, other: bytearray) -> None:
    Entry(data, "bb").move(bytes(data), Entry(data, "aa"), data)


def rename(data: bytearray, other: bytearray) -> None:
    entry = Entry(data, "bb")
    for at in (entry.begin, entry.name_in_header):
        data[at + 2 : at + 4] = b"zz"


def reshape(data: bytearray, other: bytearray) -> None:
    entry = Entry(data, "bb")
    for at in (entry.shape_at, entry.shape_in_header):
        data[at : at + 8] = struct.pack("<II", 5, 20)


def retype(data: bytearray, other: bytearray) -> None:
    entry = Entry(data, "bb")
    for at in (entry.begin, entry.name_in_header):
        where = data.index(b"<f4", at)
        data[where : where + 3] = b"<i4"


def reorder(data: bytearray, other: bytearray) -> None:
    a, b = Entry(data, "aa"), Entry(data, "bb")
    data[a.begin : b.end] = data[b.begin : b.end] + data[a.begin : a.end]


def drop(data: bytearray, other: bytearray) -> None:
    entry = Entry(data, "cc")
    data[entry.begin : 4096] = data[entry.end : 4096] + bytes(entry.end - entry.begin)
    data[57:65] = struct.pack("<Q", 2)


ATTACKS: list[Callable[[bytearray, bytearray], None]] = [
    swap,
    splice,
    duplicate,
    rename,
    reshape,
    retype,
    reorder,
    drop,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_attacks(path: str, attack: Callable[[bytearray, bytearray], None]) -> None:
    other = saved(path, {name: tensor + 1 for name, tensor in TENSORS.items()})
    data = saved(path)
    attack(data, other)
    Path(path).write_bytes(data)
    noticed = r"the file was modified|not the one that was written|do not fit 2 tensors"
    with pytest.raises(Error, match=noticed):
        ops.load(path, options=OPTIONS)
    # Without the records, a load does not detect the attack, or detects only a repeated nonce.
    Path(path).write_bytes(without_records(bytes(data)))
    if attack is drop:
        # Detected only because the data of the dropped tensor is still in the file.
        with pytest.raises(Error, match="may hold more tensors"):
            ops.load(path, options=OPTIONS)
        return
    if attack is duplicate:
        with pytest.raises(Crypto, match="nonce"):
            ops.load(path, options=OPTIONS)
    else:
        ops.load(path, options=OPTIONS)
    with pytest.raises(Crypto, match="require_authenticated"):
        ops.load(path, options=STRICT)


def test_a_subset_is_checked_as_well(path: str) -> None:
    data = saved(path)
    swap(data, data)
    Path(path).write_bytes(data)
    assert_same(ops.load(path, names=["cc"], options=STRICT), {"cc": TENSORS["cc"]})
    with pytest.raises(Crypto, match="'aa'"):
        ops.load(path, names=["aa"], options=STRICT)


def test_what_a_reader_tells_of_a_tensor_is_checked(path: str) -> None:
    data = saved(path)
    reader = torch.classes.tensorizer.Reader(path, OPTIONS)
    assert reader.stored("aa")["type"] == "state_dict"
    data[Entry(data, "aa").header + 8] ^= 1  # the module index
    Path(path).write_bytes(data)
    with pytest.raises(Crypto, match=r"'aa'.* not the one that was written"):
        torch.classes.tensorizer.Reader(path, OPTIONS).stored("aa")


@pytest.mark.parametrize("version", [1, 2, 4])
def test_the_flag_cannot_be_rolled_back(path: str, version: int) -> None:
    data = saved(path)
    data[5] = version
    Path(path).write_bytes(data)
    for options in ({}, OPTIONS, STRICT):
        with pytest.raises(Error):
            ops.load(path, options=options)


def test_every_byte_of_the_metadata_counts(path: str) -> None:
    data = saved(path)
    headers = [Entry(data, name) for name in TENSORS]
    places = list(range(4096)) + [at for e in headers for at in range(e.header, e.data)]
    memory = torch.frombuffer(data, dtype=torch.uint8)
    loads = ops.open(memory, options=STRICT)
    assert_same(dict(loads.load(None, None, None, "none", False, 0)), TENSORS)
    for at in places:
        data[at] ^= 1 << (at % 8)
        with pytest.raises(Error):
            ops.open(memory, options=STRICT).load(None, None, None, "none", False, 0)
        data[at] ^= 1 << (at % 8)


def test_a_file_authenticated_by_hand(path: str) -> None:
    """Writes the record as docs/format.md specifies it."""
    blocks = []
    for name, tensor in TENSORS.items():
        plain = tensor.numpy().tobytes()
        out, entry = chunked(KEY, plain)
        dtype = "<f4" if tensor.is_floating_point() else "<i8"
        blocks.append(
            Block(name, dtype, tuple(tensor.shape), out, hashes=(), crypt=crypt_info(entry))
        )
    tail = bytes(300)
    data = authentication(
        pack(blocks, version=3, index_tail=tail), tail, KEY, [pack_header(b) for b in blocks]
    )
    Path(path).write_bytes(data)
    assert_same(ops.load(path, options=STRICT), TENSORS)


def test_ours_is_as_the_format_says(path: str) -> None:
    data = bytes(saved(path))
    at = data.index(MAGIC)
    kind, size = struct.unpack_from("<HI", data, at + 5)
    body = data[at + 11 : at + 11 + size]
    assert (kind, body[:2]) == (1, bytes(2))
    headers = [Entry(data, name) for name in TENSORS]
    digests = [hashlib.sha256(data[e.header : e.data]).digest() for e in headers]
    assert body[2:-32] == b"".join(digests)
    assert body[-32:] == metadata_mac(KEY, data[: at + 11 + size - 32])
    assert not any(data[at + 11 + size : 4096])


def test_passphrases_derive_one_key(path: str) -> None:
    tensorizer_ops.keys.add("authentication", passphrase="x")
    ops.save(path, TENSORS, options=OPTIONS | {"kdf": "min"})
    assert_same(ops.load(path, options=STRICT), TENSORS)
    data = Path(path).read_bytes()
    at = data.index(MAGIC)
    assert struct.unpack_from("<H", data, at + 11) == (40,)
    # Every header has the same salt as the record.
    assert data.count(data[at + 13 : at + 53]) == 1 + len(TENSORS)
