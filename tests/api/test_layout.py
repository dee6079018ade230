"""The layout of written files, byte for byte, checked with a separate parser."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorizer import TensorDeserializer

from support.raw_format import CRC32, SHA256, STATE_DICT, pack
from support.raw_parse import Parsed, parse
from support.samples import assert_same, random_bytes, raw, sample, stored_dtype, zoo
from support.specimen import blocks

ops = torch.ops.tensorizer

HASHES = {"all": {CRC32, SHA256}, "crc32": {CRC32}, "sha256": {SHA256}, "none": set()}


def around(size: int) -> dict[str, torch.Tensor]:
    return {str(count): random_bytes(count, count) for count in range(size - 2, size + 3)}


def mixed() -> dict[str, torch.Tensor]:
    return {
        **zoo(),
        **around(64),
        **around(4096),
        **around(65536),
        "empty": torch.empty(0),
        "large": sample(torch.float32, (700, 900)),
        "x" * 5000: sample(torch.int8, (100_000,)),
    }


def save(path: str, tensors: dict[str, torch.Tensor], **options: Any) -> None:
    ops.save(path, tensors, **options)


def write(path: str, tensors: dict[str, torch.Tensor]) -> None:
    writer = torch.classes.tensorizer.Writer(path, None)
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    writer.close()


def check(data: bytes, tensors: dict[str, torch.Tensor], start: int = 0) -> Parsed:
    parsed = parse(data, start)
    assert parsed.end == len(data)
    assert (parsed.index_end - start) % 4096 == 0
    # Records, the last of which is the seal, then zeros.
    assert parsed.index_tail[:5] == b"|TZX|"
    kind, end = 0, 5
    while kind != 15:
        kind, size = struct.unpack_from("<HI", parsed.index_tail, end)
        body, end = end + 6, end + 6 + size
    sealed = parsed.index_end - len(parsed.index_tail) + body
    assert parsed.index_tail[body:end] == hashlib.sha256(data[start:sealed]).digest()
    assert not any(parsed.index_tail[end:])
    assert parsed.size_field == sum(len(raw(tensor)) for tensor in tensors.values())
    assert [entry.name.decode() for entry in parsed.entries] == list(tensors)
    for entry, tensor in zip(parsed.entries, tensors.values(), strict=True):
        assert entry.data_offset % (4096 if entry.data_length >= 65536 else 64) == 0
        assert entry.padding < (4096 if entry.data_length >= 65536 else 64)
        assert entry.data == raw(tensor)
        assert entry.shape == entry.header_shape == tuple(tensor.shape)
        assert entry.header_name == entry.name
        assert entry.header_dtype == stored_dtype(tensor.dtype)
        assert entry.dtype in (entry.header_dtype, entry.header_dtype.split(b"\0")[0])
        assert (entry.kind, entry.module_index) == (STATE_DICT, 0)
    return parsed


@pytest.mark.parametrize("put", [save, write])
def test_everything_is_aligned_and_where_the_index_says(path: str, put: Any) -> None:
    tensors = mixed()
    put(path, tensors)
    check(Path(path).read_bytes(), tensors)


@pytest.mark.parametrize("hashes", HASHES)
def test_hashes_are_right(path: str, hashes: str) -> None:
    tensors = mixed()
    ops.save(path, tensors, hashes=hashes)
    for entry in check(Path(path).read_bytes(), tensors).entries:
        right = entry.digests()
        assert entry.hashes == {kind: right[kind] for kind in HASHES[hashes]}


def test_hashes_of_tensors_of_many_pieces(path: str) -> None:
    # Large enough and of odd sizes, so that threads share a tensor and hash several at once.
    tensors = {
        f"{index}": random_bytes(size, index)
        for index, size in enumerate([50_000_001, 9_999_999, 1, 20_000_003, 63, 8 << 20, 4097])
    }
    ops.save(path, tensors, hashes="all+chunked")
    for entry in check(Path(path).read_bytes(), tensors).entries:
        assert entry.hashes == entry.digests()
    assert_same(ops.load(path, verify="all", copy=True), tensors)


def test_the_same_tensors_make_the_same_file(tmp_path: Path) -> None:
    tensors = mixed()
    paths = [str(tmp_path / str(index)) for index in range(4)]
    ops.save(paths[0], tensors)
    ops.save(paths[1], tensors, threads=1)
    ops.save(paths[2], tensors, threads=5)
    ops.save_tensors(paths[3], list(tensors), list(tensors.values()))
    files = {Path(one).read_bytes() for one in paths}
    assert len(files) == 1


def test_small_tensors_stay_small(path: str) -> None:
    tensors = {
        f"{index}": torch.full((1024,), index % 256, dtype=torch.uint8) for index in range(3000)
    }
    ops.save(path, tensors)
    assert Path(path).stat().st_size < 3000 * (1024 + 192) + (256 << 10)


def many(count: int) -> dict[str, torch.Tensor]:
    return {f"{'long name ' * 30}{index}": torch.tensor([index]) for index in range(count)}


@pytest.mark.parametrize(("put", "count"), [(save, 20_000), (write, 5_000)])
def test_no_metadata_overflow(path: str, put: Any, count: int) -> None:
    tensors = many(count)  # an index of 7 MB or 1.7 MB
    put(path, tensors)
    check(Path(path).read_bytes(), tensors)
    assert_same(ops.load(path, verify="all"), tensors)
    with TensorDeserializer(path, device="cpu", verify_hash=True, lazy_load=True) as loaded:
        assert list(loaded.keys()) == list(tensors)
        for name in list(tensors)[::997]:
            assert raw(loaded[name]) == raw(tensors[name])


@pytest.mark.parametrize("where", ["disk", "memory"])
@pytest.mark.parametrize("expected", [None, "0", "10", "4000", "100000"])
def test_writer_whose_index_outgrows_its_room(
    tmp_path: Path, shared_memory: Path, where: str, expected: str | None
) -> None:
    path = str((tmp_path if where == "disk" else shared_memory) / "model.tensors")
    options = {"hashes": "all"} | ({} if expected is None else {"expected_tensors": expected})
    tensors = many(1000) | {"large": sample(torch.float32, (400, 500))}
    writer = torch.classes.tensorizer.Writer(path, options)
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    writer.close()
    for entry in check(Path(path).read_bytes(), tensors).entries:
        assert entry.hashes == entry.digests()
    assert_same(ops.load(path, verify="all"), tensors)


def record(kind: int, body: bytes) -> bytes:
    return struct.pack("<HI", kind, len(body)) + body


FRAMES: dict[str, bytes] = {
    "no records": b"|TZX|",
    "unknown kinds": b"|TZX|" + record(7, b"seven") + record(900, bytes(999)) + record(4, b""),
    "records, then zeros": b"|TZX|" + record(7, b"x" * 100) + record(4, b"") + bytes(500),
}
NO_FRAMES: dict[str, bytes] = {
    "another magic": b"|ABC|" + b"\xff" * 100,
    "less than a magic": b"|TZ",
    "bytes behind the records": b"|TZX|" + record(4, b"") + bytes(6) + b"x",
    "bytes far behind the entries": bytes(1500) + b"x",
}


@pytest.mark.parametrize("frame", NO_FRAMES.values(), ids=NO_FRAMES)
@pytest.mark.parametrize("room", [0, 2000])
def test_what_is_no_record_behind_the_index_is_refused(path: str, frame: bytes, room: int) -> None:
    Path(path).write_bytes(pack(blocks(), index_tail=frame + bytes(room)))
    with pytest.raises(ValueError, match=r"bytes other than zero behind the 3 index entries"):
        ops.load(path)


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize("room", [0, 2000])
def test_unknown_records_behind_the_index_are_skipped(path: str, frame: bytes, room: int) -> None:
    Path(path).write_bytes(pack(blocks(), index_tail=frame + bytes(room)))
    assert [raw(tensor) for tensor in ops.load(path, verify="all").values()] == [
        block.data for block in blocks()
    ]
    with TensorDeserializer(path, device="cpu", verify_hash=True) as loaded:
        assert [raw(tensor) for tensor in loaded.values()] == [block.data for block in blocks()]
