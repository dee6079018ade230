"""Digests of chunks, as programs and files of other libraries see them."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any, Dict, get_args  # noqa: UP035  (TorchScript reads Dict)

import pytest
import torch
from tensorizer import TensorDeserializer

import tensorizer_ops
from local_servers.web import Web
from support import sim_device as sim
from support.samples import assert_same, flip, same, sample, zoo
from tensorizer_ops import Hashes, _core, errors
from tensorizer_ops._base.internals import reader_of

ops = torch.ops.tensorizer
Reader = torch.classes.tensorizer.Reader
Writer = torch.classes.tensorizer.Writer

CHUNK = 65536
SMALL_CHUNKS = {"digest_chunk": str(CHUNK)}


def data_offset(path: str, name: str) -> int:
    return int(Reader(path, None).stored(name)["data_offset"])


@pytest.mark.parametrize("hashes", [word for word in get_args(Hashes) if "chunked" in word])
@pytest.mark.parametrize("chunk", [None, "65536", "16777216"])
def test_both_libraries_verify(path: str, hashes: str, chunk: str | None) -> None:
    tensors = zoo() | {"large": sample(torch.float32, (1100, 1000))}
    options = None if chunk is None else {"digest_chunk": chunk}
    tensorizer_ops.save(path, tensors, hashes=hashes, options=options)
    for copy in (False, True):
        assert_same(ops.load(path, verify="all", copy=copy), tensors)
    assert_same(ops.load(path, verify="crc32"), tensors)
    ops.verify(path)
    with TensorDeserializer(path, device="cpu", verify_hash=True) as loaded:
        assert_same(loaded, tensors)
    at = data_offset(path, "large") + 3_000_000
    flip(path, at)
    with pytest.raises(errors.HashMismatch, match="'large'"):
        ops.load(path, verify="all")
    with pytest.raises(errors.HashMismatch, match="'large'"):
        ops.load(path, verify="crc32")


def test_every_damaged_chunk_is_named(path: str) -> None:
    tensors = {f"t{i}": sample(torch.float32, (100_000,), i) for i in range(3)}
    tensorizer_ops.save(path, tensors, hashes="chunked", options=SMALL_CHUNKS)
    places = []
    for name, chunk in [("t0", 1), ("t0", 5), ("t2", 6)]:
        place = data_offset(path, name) + chunk * CHUNK
        flip(path, place + 7)
        places.append(f"'{name}' .*: its .* bytes from offset {place} on")
    with pytest.raises(errors.HashMismatch) as raised:
        ops.verify(path)
    lines = str(raised.value).splitlines()
    assert len(lines) == len(places)
    for line, place in zip(lines, places, strict=True):
        assert re.search(place, line), line
    ops.load(path, names=["t1"], verify="all")


def test_parts_are_verified(path: str) -> None:
    weight = sample(torch.float32, (500, 1000))
    tensorizer_ops.save(path, {"weight": weight}, hashes="chunked", options=SMALL_CHUNKS)
    begin = data_offset(path, "weight")
    cases = {
        "rows": (slice(100, 120), [400_000, 479_999, 393_216, 524_287]),
        "columns": ((slice(450, 460), slice(10, 20)), [1_800_040, 1_769_472]),
        "strided": (slice(0, 500, 499), [0, 65_535, 1_999_999]),
    }
    for index, bytes_that_count in cases.values():
        slices = {"weight": index}
        for copy in (False, True):
            part = tensorizer_ops.load(path, slices=slices, verify="all", copy=copy)["weight"]
            assert same(part, weight[index])
        for position in bytes_that_count:
            flip(path, begin + position)
            for copy in (False, True):
                with pytest.raises(errors.HashMismatch, match="'weight'"):
                    tensorizer_ops.load(path, slices=slices, verify="all", copy=copy)
            flip(path, begin + position)
        flip(path, begin + 1_000_000)  # in no chunk of these slices
        tensorizer_ops.load(path, slices=slices, verify="all")
        flip(path, begin + 1_000_000)


def test_parts_need_chunks_to_be_verified(path: str) -> None:
    slices = {"w": slice(1, 3)}
    tensorizer_ops.save(path, {"w": torch.ones(9, 9)}, hashes="all")
    with pytest.raises(ValueError, match='save the file with hashes="chunked"'):
        tensorizer_ops.load(path, slices=slices, verify="all")
    tensorizer_ops.save(path, {"w": torch.ones(9, 9)}, hashes="chunked")
    with pytest.raises(ValueError, match='verify="all", which compares the digests of its chunks'):
        tensorizer_ops.load(path, slices=slices, verify="crc32")


def through_a_device(path: str) -> None:
    tensors = {"a": sample(torch.float32, (300, 1000)), "b": sample(torch.float16, (7,))}
    on_device = {name: tensor.to("sim:0") for name, tensor in tensors.items()}
    tensorizer_ops.save(path, on_device, hashes="chunked", options=SMALL_CHUNKS)
    plain = path + ".plain"
    tensorizer_ops.save(plain, tensors, hashes="chunked", options=SMALL_CHUNKS)
    assert Path(path).read_bytes() == Path(plain).read_bytes()
    loaded = ops.load(path, device="sim:0", verify="all")
    assert_same({name: tensor.cpu() for name, tensor in loaded.items()}, tensors)
    half = ops.load(path, device="sim:0", verify="all", dtype=torch.bfloat16)
    assert same(half["a"].cpu(), tensors["a"].bfloat16())
    rows = tensorizer_ops.load(path, slices={"a": slice(50, 200)}, device="sim:0", verify="all")
    assert same(rows["a"].cpu(), tensors["a"][50:200])
    flip(path, data_offset(path, "a") + 700_000)
    with pytest.raises(errors.HashMismatch, match="'a'"):
        ops.load(path, device="sim:0", verify="all")


def test_tensors_of_a_device_are_verified(path: str) -> None:
    with sim.fresh():
        through_a_device(path)


@torch.jit.script
def round_trip(path: str, tensors: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:  # noqa: UP006
    torch.ops.tensorizer.save(path, tensors, hashes="chunked")
    return torch.ops.tensorizer.load(path, verify="all")


def test_scripts_save_and_verify(path: str) -> None:
    tensors = {"w": sample(torch.float32, (300, 300))}

    assert_same(round_trip(path, tensors), tensors)


def test_encrypted_files_have_macs_instead(path: str) -> None:
    tensorizer_ops.keys.add("chunks", key=bytes(range(32)))
    options = {"key": "named:chunks"}
    weight = sample(torch.float32, (1000, 1000))
    tensorizer_ops.save(path, {"weight": weight}, hashes="chunked", options=options)
    stored = Reader(path, options).stored("weight")
    assert "crc32" not in stored
    assert "sha256" not in stored
    for verify in ("none", "all"):
        rows = {"weight": slice(10, 20)}
        part = tensorizer_ops.load(path, slices=rows, options=options, verify=verify)["weight"]
        assert same(part, weight[10:20])
    for verify in ("crc32", "all"):
        ops.verify(path, verify=verify, options=options)
    flip(path, int(Reader(path, options).stored("weight")["data_offset"]))
    with pytest.raises(errors.Crypto):
        tensorizer_ops.load(path, slices={"weight": slice(10, 20)}, options=options)


def test_options_that_make_no_sense(path: str) -> None:
    tensors = {"w": torch.ones(3)}
    with pytest.raises(ValueError, match="'digest_chunk' is given, and hashes asks for no digests"):
        tensorizer_ops.save(path, tensors, hashes="all", options=SMALL_CHUNKS)
    for size in ("0", "65535", "32768", "33554432", "x", "1e6"):
        with pytest.raises(ValueError, match="digest_chunk"):
            tensorizer_ops.save(path, tensors, hashes="chunked", options={"digest_chunk": size})
    key = {"key": "env:UNUSED"}
    for options, why in [
        ({"plain_digests": "true"}, "for encrypted files, and no key is given"),
        (SMALL_CHUNKS | key, "leave it out, or see the option 'plain_digests'"),
    ]:
        with pytest.raises(ValueError, match=why):
            tensorizer_ops.save(path, tensors, hashes="chunked", options=options)
    with pytest.raises(ValueError, match="'plain_digests' is given, and hashes asks for no"):
        tensorizer_ops.save(path, tensors, hashes="all", options={"plain_digests": "true"} | key)
    assert not os.path.exists(path)


@pytest.mark.parametrize("expected", ["0", "40000000"])
def test_writer(path: str, expected: str) -> None:
    tensors = {f"t{i}": sample(torch.float32, (1_000_000,), i) for i in range(10)}
    options = {"hashes": "chunked", "expected_bytes": expected, **SMALL_CHUNKS}
    writer = Writer(path, options)
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    writer.close()
    assert_same(ops.load(path, verify="all"), tensors)


def test_chunks_are_fetched_past_a_cache(web: Web, tmp_path: Path) -> None:
    tensors = {"w": sample(torch.float32, (200_000,)), "v": sample(torch.float32, (50,))}
    options = SMALL_CHUNKS
    right = tmp_path / "m.tensors"
    tensorizer_ops.save(right, tensors, hashes="chunked", options=options)
    place = data_offset(str(right), "w") + 300_000
    served = web.root / "m.tensors"
    served.write_bytes(right.read_bytes())
    flip(served, place)
    os.utime(served, (1_600_000_000, 1_600_000_000))
    cached = web.url("cached/m.tensors")
    damaged = ops.load(cached)["w"]  # the cache keeps this
    assert not same(damaged, tensors["w"])
    with pytest.raises(errors.HashMismatch, match="'w'"):
        ops.load(cached, verify="all")
    served.write_bytes(right.read_bytes())
    os.utime(served, (1_600_000_000, 1_600_000_000))
    assert not same(ops.load(cached)["w"], tensors["w"])
    assert_same(ops.load(cached, verify="all"), tensors)
    copy = tmp_path / "copy.tensors"
    tensorizer_ops.convert(cached, copy, hashes="chunked", target_options=options)
    assert copy.read_bytes() == right.read_bytes()


def changed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A fine-tuned model: some values of one tensor differ, one has gone, one is new in front."""
    newer = {"new": sample(torch.float32, (70,), 5)}
    newer |= {name: tensor.clone() for name, tensor in tensors.items() if name != "gone"}
    newer["t3"][5:50] += 1
    return newer


def test_update_fetches_what_has_changed(web: Web, tmp_path: Path) -> None:
    tensors = {f"t{i}": sample(torch.float32, (500_000,), i) for i in range(10)}
    tensors["gone"] = sample(torch.float32, (100_000,), 11)
    served = web.root / "newer.tensors"
    newer = changed(tensors)
    tensorizer_ops.save(
        served, newer, hashes="chunked", options=SMALL_CHUNKS, metadata={"version": "2"}
    )
    os.utime(served, (1_600_000_000, 1_600_000_000))
    target = tmp_path / "model.tensors"
    # Whatever the older file's hashes are, and whichever its format.
    for name, hashes in [("model.tensors", "none"), ("m.safetensors", "all")]:
        older = tmp_path / name
        tensorizer_ops.save(older, tensors, hashes=hashes)
        older.rename(target)
        web.requests()
        updated = tensorizer_ops.update(web.url("newer.tensors"), target)
        sent = sum(int(line.split('" 20')[1].split(" ")[1]) for line in web.requests())
        assert target.read_bytes() == served.read_bytes()
        # The changed chunk, headers, and the first request (1 MiB), which has the index.
        assert updated.fetched + updated.kept >= 20_000_000
        assert updated.fetched < 2 * CHUNK
        assert sent < 2 * CHUNK + (1 << 20)
    again = tensorizer_ops.update(web.url("newer.tensors"), target)
    assert again.fetched == 0
    assert target.read_bytes() == served.read_bytes()
    target.unlink()
    copied = tensorizer_ops.update(web.url("newer.tensors"), target)
    assert copied.kept == 0
    assert target.read_bytes() == served.read_bytes()


def test_update_with_chunks_that_are_larger_than_a_read(tmp_path: Path) -> None:
    tensors = {"w": torch.arange(10_000_000, dtype=torch.int32), "x": torch.ones(100)}
    newer = tmp_path / "newer.tensors"
    target = tmp_path / "model.tensors"
    options = {"digest_chunk": "16777216"}
    tensorizer_ops.save(target, tensors, hashes="chunked", options=options)
    tensorizer_ops.save(newer, tensors | {"x": torch.zeros(100)}, hashes="chunked", options=options)
    updated = tensorizer_ops.update(newer, target)
    assert 400 <= updated.fetched < 1000  # the other tensor, and its header
    assert updated.kept >= 40_000_000
    assert target.read_bytes() == newer.read_bytes()


def test_update_does_not_read_a_much_larger_file(tmp_path: Path) -> None:
    """One that somebody has put there may be sparse, and of any size."""
    tensors = {"w": sample(torch.float32, (100_000,))}
    newer = tmp_path / "newer.tensors"
    target = tmp_path / "model.tensors"
    tensorizer_ops.save(newer, tensors, hashes="chunked")
    for size, is_read in ((10 << 20, True), (256 << 20, False)):
        more = {"x": torch.zeros(size, dtype=torch.uint8)}
        tensorizer_ops.save(target, tensors | more, hashes="none")
        assert (tensorizer_ops.update(newer, target).kept > 0) == is_read
        assert target.read_bytes() == newer.read_bytes()
    header = {"w": {"dtype": "U8", "shape": [1 << 42], "data_offsets": [0, 1 << 42]}}
    text = json.dumps(header).encode()
    target.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(target, 8 + len(text) + (1 << 42))
    assert tensorizer_ops.update(newer, target).kept == 0


def test_update_names_a_local_file_that_changes_meanwhile(tmp_path: Path) -> None:
    newer = tmp_path / "newer.tensors"
    target = tmp_path / "model.tensors"
    tensors = {"a": torch.ones(1_000_000), "b": sample(torch.float32, (1_000_000,))}
    tensorizer_ops.save(target, tensors, hashes="chunked")
    tensorizer_ops.save(newer, tensors | {"a": torch.zeros(1_000_000)}, hashes="chunked")
    content = newer.read_bytes()
    first, kept = data_offset(str(newer), "a"), data_offset(str(target), "b")
    numbers = itertools.count(1)

    class Newer(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            if self.tell() >= first:
                with target.open("r+b") as file:
                    file.seek(kept)
                    file.write(next(numbers).to_bytes(8, "little"))
            return super().readinto(buffer)

    reader = reader_of(_core.file_source(Newer(content), 0, True, False, False), {})
    with pytest.raises(errors.HashMismatch, match=r"model\.tensors' has changed while it was upd"):
        reader.update(str(target), 1)


def test_update_does_not_trust_the_local_file(tmp_path: Path) -> None:
    tensors = {"w": sample(torch.float32, (100_000,))}
    newer = tmp_path / "newer.tensors"
    target = tmp_path / "model.tensors"
    tensorizer_ops.save(newer, tensors, hashes="chunked", options=SMALL_CHUNKS)
    target.write_bytes(newer.read_bytes())
    flip(target, data_offset(str(target), "w") + 100_000)
    assert tensorizer_ops.update(newer, target).fetched == CHUNK
    assert target.read_bytes() == newer.read_bytes()


def test_update_refuses_places(web: Web, tmp_path: Path) -> None:
    tensors = {"x": torch.ones(5), "y": torch.ones(1 << 20)}
    tensorizer_ops.save(web.root / "places.tensors", tensors, hashes="chunked")
    for target in (web.url("places.tensors"), "s3://bucket/places.tensors"):
        with pytest.raises(errors.InvalidArgument, match="an update replaces a local file"):
            tensorizer_ops.update(web.url("places.tensors"), target)
    local = tmp_path / "local.tensors"
    tensorizer_ops.save(local, {"x": torch.zeros(5)})
    with pytest.raises(errors.InvalidArgument, match=r"read only once.*copy it"):
        tensorizer_ops.update(web.url("no-ranges/places.tensors"), local)
    assert tensorizer_ops.load(local)["x"].tolist() == [0] * 5


def test_update_refuses(tmp_path: Path) -> None:
    tensorizer_ops.keys.add("chunks", key=bytes(range(32)))
    tensors = {"w": torch.ones(3)}
    chunked, plain, secret = (tmp_path / name for name in ("chunked", "plain", "secret"))
    tensorizer_ops.save(chunked, tensors, hashes="chunked")
    tensorizer_ops.save(plain, tensors, hashes="all")
    tensorizer_ops.save(secret, tensors, options={"key": "named:chunks"})
    before = secret.read_bytes()
    with pytest.raises(ValueError, match='hashes="chunked"'):
        tensorizer_ops.update(plain, chunked)
    with pytest.raises(ValueError, match="no two have a chunk in common"):
        tensorizer_ops.update(chunked, secret)
    with pytest.raises(ValueError, match="no two have a chunk in common"):
        tensorizer_ops.update(secret, chunked, source_options={"key": "named:chunks"})
    (tmp_path / "text").write_text("not a model")
    with pytest.raises(ValueError, match=r"not a \.tensors or safetensors file"):
        tensorizer_ops.update(chunked, tmp_path / "text")
    assert secret.read_bytes() == before
    assert (tmp_path / "text").read_text() == "not a model"
