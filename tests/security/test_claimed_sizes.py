"""A claimed size takes no memory: memory is allocated as bytes arrive."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.process import feed, fork_python
from support.raw_crypt import crypt_info
from support.raw_format import INDEX_START, Block, pack, pack_header
from tensorizer_ops.errors import InvalidArgument, InvalidFormat

ops = torch.ops.tensorizer
Reader, Writer = torch.classes.tensorizer.Reader, torch.classes.tensorizer.Writer

KEY = bytes(range(9, 41))
GIB = 1 << 30

# Measures the peak memory of calls, in a separate interpreter.
PREAMBLE = """
import sys, torch, tensorizer_ops
from pathlib import Path
from tensorizer_ops.errors import Error, InvalidFormat

ops = torch.ops.tensorizer
Reader = torch.classes.tensorizer.Reader
KEY = bytes(range(9, 41))
tensorizer_ops.keys.add("claimed", key=KEY)
OPTIONS = {"key": "named:claimed"}


def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) << 10


def most_taken(work):
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    work()
    return status("VmHWM") - before


def refused(work):
    def attempt():
        try:
            work()
        except Error as error:
            assert isinstance(error, InvalidFormat), error
        else:
            raise AssertionError("nothing was refused")
    return most_taken(attempt)


ops.save(sys.argv[1] + ".small", {"x": torch.ones(3)})
ops.load(sys.argv[1] + ".small", verify="all")
ops.verify(sys.argv[1] + ".small")
"""

# The source is a pipe, whose size is unknown until its end.
CLAIMS = """
path = sys.argv[1]
for name, work in {
    "verify": lambda: ops.verify(path, options=OPTIONS),
    "stored": lambda: Reader(path, OPTIONS).stored("b"),
    "digest": lambda: tensorizer_ops.digest(path, options=OPTIONS),
    "decrypt": lambda: tensorizer_ops.decrypt(path, path + ".plain", key="named:claimed"),
}.items():
    if name == sys.argv[2]:
        taken = refused(work)
        assert taken < 128 << 20, (name, taken >> 20)
"""


def long_header() -> bytes:
    """Returns a file with a tensor of 128 GiB in chunks of 1 KiB, which have 2 GiB of MACs."""
    size = 128 * GIB
    block = Block("b", "|u1", (size // 64, 64), b"", crypt=crypt_info())
    offset = INDEX_START + 4096
    block.index = {"data_length": size, "data_offset": offset + size // 64}
    return pack([block], version=3, index_size=4096)


def single_chunk() -> bytes:
    """Returns a file with a tensor of 2 GiB that is encrypted as one chunk."""
    size = 2 * GIB
    entry = struct.pack("<QH", 2 + 24 + 16, 3) + bytes(24 + 16)
    block = Block("b", "|u1", (size,), b"", crypt=crypt_info(entry), hashes=(1,))
    block.index = block.header = {"data_length": size}
    return pack([block], version=3)


@pytest.mark.parametrize(
    ("claim", "calls"),
    [
        (long_header, ["verify", "stored", "digest"]),
        (single_chunk, ["verify", "digest"]),
    ],
    ids=["header", "chunk"],
)
def test_a_size_that_is_only_claimed(tmp_path: Path, claim: object, calls: list[str]) -> None:
    data = claim()
    for call in calls:
        fifo = tmp_path / call
        with feed(str(fifo), data):
            fork_python(PREAMBLE + CLAIMS, str(fifo), call)


def test_a_header_that_is_longer_than_its_tensor_can_need(path: str) -> None:
    header = pack_header(Block("b", "|u1", (5,), b"hello", padding=64 << 10))
    assert len(header) > 64 << 10
    Path(path).write_bytes(pack([Block("b", "|u1", (5,), b"hello", padding=64 << 10)]))
    assert bytes(ops.load(path, verify="all")["b"].tolist()) == b"hello"
    # For data that is not encrypted, more data does not allow a longer header.
    Path(path).write_bytes(pack([Block("b", "|u1", (1 << 20,), bytes(1 << 20), padding=200 << 10)]))
    for attempt in (
        lambda: ops.verify(path),
        lambda: ops.load(path, verify="all", copy=True),
        lambda: Reader(path, None).stored("b"),
    ):
        with pytest.raises(InvalidFormat, match=r"tensor 'b' .* too long: .* needs at most \d+"):
            attempt()


def test_room_for_tensors_that_never_come(path: str) -> None:
    writer = Writer(path, {"expected_tensors": str(1 << 32)})
    for name in "abc":
        writer.add(name, torch.ones(1))
    writer.close()
    assert Path(path).stat().st_size < 113 << 20
    assert list(ops.load(path)) == ["a", "b", "c"]


@pytest.mark.parametrize("option", ["s3_secret_access_key", "redis_password", "az_account_key"])
def test_a_secret_from_a_file_without_an_end(tmp_path: Path, option: str) -> None:
    uri, others = "redis://127.0.0.1:1/prefix", {}
    if option.startswith("s3"):
        uri, others = "s3://bucket/key", {"s3_access_key_id": "id"}
    if option.startswith("az"):
        uri = "az://account/container/key"
    message = r"first line of '/dev/zero': it has more than 65536 bytes"
    with pytest.raises(InvalidArgument, match=message):
        ops.load(uri, options=others | {option: "file:/dev/zero"})
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidArgument, match=r"first line of .*empty': it is empty"):
        ops.load(uri, options=others | {option: f"file:{tmp_path}/empty"})


def deep(*first: int, steps: int) -> str:
    return "\x1e" + json.dumps([*first, *[0] * (steps - len(first))], separators=(",", ":"))


def test_names_are_nested_a_thousand_levels_deep_at_most(path: str) -> None:
    ops.save(path, {deep(steps=1000): torch.ones(2)})
    loaded = tensorizer_ops.TensorDeserializer(path, device="cpu").tree()
    for _ in range(1000):
        loaded = loaded[0]
    assert loaded.tolist() == [1, 1]
    for steps in (1001, 32000):
        with pytest.raises(InvalidArgument, match="is nested more than 1000 levels deep"):
            ops.save(path, {deep(steps=steps): torch.ones(2)})
        Path(path).write_bytes(pack([Block(deep(steps=steps), "|u1", (1,), b"x")]))
        with pytest.raises(InvalidFormat, match=r"is nested more than 1000 levels deep"):
            ops.names(path)


def test_layers_that_are_more_than_tensors_need(path: str) -> None:
    """Each level takes two bytes in a name, but more than 200 in a dict."""
    names = [deep(number, steps=1000) for number in range(200)]
    Path(path).write_bytes(pack([Block(name, "|u1", (1,), b"x") for name in names]))
    assert list(ops.load(path)) == names
    loaded = tensorizer_ops.TensorDeserializer(path, device="cpu")
    assert list(loaded.keys()) == list(range(200))
    assert len(loaded.tree([7])) == 1
    with pytest.raises(InvalidFormat, match="load them by their names"):
        loaded.tree()


NAMES = """
path = sys.argv[1]
size = Path(path).stat().st_size
for name, work in {
    "names": lambda: ops.names(path),
    "open": lambda: tensorizer_ops.TensorDeserializer(path, device="cpu", lazy_load=True),
}.items():
    taken = most_taken(work) / size
    assert taken < 12, (name, taken)
"""


def test_memory_for_nested_names(path: str) -> None:
    count = 60_000
    names = [deep(number, steps=60) for number in range(count)]
    header = len(pack_header(Block(names[-1], "|u1", (0,))))
    entries = []
    offset = INDEX_START + sum(2 + len(name) + 1 + 1 + 3 + 1 + 4 + 24 for name in names)
    # For empty tensors only the index is read, so their headers need no content.
    for name in names:
        stored = name.encode()
        shape = struct.pack("<BI", 1, 0)
        places = struct.pack("<QQQ", offset, offset + header, 0)
        entries.append(struct.pack("<H", len(stored)) + stored + b"\x02\x03|u1" + shape + places)
        offset += header
    index = b"".join(entries)
    head = pack([], count=count)[: INDEX_START - 8]
    with Path(path).open("wb") as file:
        file.write(head + struct.pack("<Q", len(index)) + index)
        file.truncate(offset + 8)
    fork_python(
        PREAMBLE + NAMES.replace("stat().st_size", f"stat().st_size * 0 + {len(index)}"), path
    )


def test_an_index_of_nothing_is_not_read(path: str) -> None:
    """A sparse file can have any size, and takes no space on the disk."""
    ops.save(path, {"x": torch.ones(3)})
    with open(path, "r+b") as file:
        file.seek(INDEX_START - 8)
        file.write(struct.pack("<Q", 6 * GIB))
        file.truncate(7 * GIB)
    with pytest.raises(InvalidFormat, match="far more than 1 tensors can take"):
        ops.names(path)
