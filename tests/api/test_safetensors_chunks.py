"""Digests of chunks in safetensors files, and those of plaintext in encrypted files."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

import tensorizer_ops
from support.process import Drain
from support.samples import assert_same, flip, raw, same, sample
from tensorizer_ops import errors

CHUNK = 1 << 16
SMALL = {"digest_chunk": str(CHUNK)}
KEY = "tensorizer_ops.sha256.chunks"
TENSORS = {
    "large": sample(torch.float32, (1000, 500)),  # 30.5 small chunks, 1.9 of 1 MiB
    "small": sample(torch.float16, (30, 20)),
    "empty": torch.empty(0, 3),
}


@pytest.fixture
def key() -> Iterator[str]:
    tensorizer_ops.keys.add("chunks", key=bytes(range(32)))
    yield "named:chunks"
    tensorizer_ops.keys.remove("chunks")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def header_of(path: Path) -> dict[str, dict[str, object]]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header: dict[str, dict[str, object]] = json.loads(data[8 : 8 + size])
    return header


def damage(path: Path, tensor: str, position: int) -> None:
    stored = torch.classes.tensorizer.Reader(str(path), None).stored(tensor)
    flip(str(path), int(stored["data_offset"]) + position)


@pytest.mark.parametrize("hashes", ["chunked", "all+chunked"])
def test_the_list_is_as_the_format_says(file: Path, hashes: str) -> None:
    tensorizer_ops.save(file, TENSORS, hashes=hashes, options=SMALL, metadata={"a": "b"})
    header = header_of(file)
    metadata = header.pop("__metadata__")
    kept = ["a", KEY] if hashes == "chunked" else ["a", "tensorizer_ops.sha256", KEY]
    assert list(metadata) == kept
    assert tensorizer_ops.metadata(file) == {"a": "b"}
    bound = hashlib.sha256()
    digests = b""
    for name, entry in header.items():
        data = raw(TENSORS[name])
        chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
        digests += b"".join(hashlib.sha256(chunk).digest() for chunk in chunks)
        for text in (name, str(entry["dtype"])):
            bound.update(struct.pack("<Q", len(text)) + text.encode())
        shape = TENSORS[name].shape
        bound.update(struct.pack(f"<{len(shape) + 1}Q", len(shape), *shape))
    covered = digests + bound.digest()
    last = hashlib.sha256(struct.pack("<Q", CHUNK) + covered).hexdigest()
    assert metadata[KEY] == f"{CHUNK}:{covered.hex()}{last}"
    with safetensors.safe_open(file, "pt") as theirs:
        assert_same({name: theirs.get_tensor(name) for name in TENSORS}, TENSORS)


@pytest.mark.parametrize("shards", [False, True])
def test_whole_tensors_and_parts_are_verified(tmp_path: Path, file: Path, shards: bool) -> None:
    options = SMALL | ({"max_shard_size": "1900000"} if shards else {})
    weights = {f"w{i}": sample(torch.float32, (1000, 250), i) for i in range(3)}
    tensorizer_ops.save(file, weights, hashes="chunked", options=options)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == (3 if shards else 1)
    model = tmp_path if shards else file
    part = {"w1": (slice(300, 400),)}
    for verify in ("crc32", "all"):
        assert_same(tensorizer_ops.load(model, verify=verify), weights)
        rows = tensorizer_ops.load(model, slices=part, verify=verify)["w1"]
        assert same(rows, weights["w1"][300:400])
    damage(files[1] if shards else file, "w1", 350 * 1000 + 2)  # in row 350
    damaged = r"'w1'.*: its 65536 bytes from offset \d+"
    if shards:
        damaged += f" of '{files[1]}'"
    for verify in ("crc32", "all"):
        for slices in (None, part):
            with pytest.raises(errors.HashMismatch, match=damaged):
                tensorizer_ops.load(model, slices=slices, verify=verify)
    other = {"w1": (slice(0, 200),)}
    assert same(tensorizer_ops.load(model, slices=other, verify="all")["w1"], weights["w1"][:200])


def test_a_pipe_gets_them_in_front_of_the_data(tmp_path: Path, file: Path) -> None:
    tensorizer_ops.save(file, TENSORS, hashes="all+chunked", options=SMALL)
    pipe = str(tmp_path / "pipe.safetensors")
    with Drain(pipe) as drain:
        tensorizer_ops.save(pipe, TENSORS, hashes="all+chunked", options=SMALL)
        drain.wait()
    assert bytes(drain.data) == file.read_bytes()


def test_conversion_and_update_keep_them(tmp_path: Path, file: Path) -> None:
    ours, target = tmp_path / "model.tensors", tmp_path / "target.safetensors"
    tensorizer_ops.save(ours, TENSORS, hashes="chunked")
    tensorizer_ops.convert(ours, file, hashes="chunked", target_options=SMALL)
    pin = tensorizer_ops.digest(ours, version=2, listed=True)
    assert tensorizer_ops.digest(file, version=2) == pin
    tensorizer_ops.convert(file, tmp_path / "again.safetensors", hashes="chunked")
    assert tensorizer_ops.digest(tmp_path / "again.safetensors", version=2, listed=True) == pin
    older = {name: tensor.clone() for name, tensor in TENSORS.items()}
    older["large"][400] = 1
    tensorizer_ops.save(target, older)
    updated = tensorizer_ops.update(file, target)
    assert 0 < updated.fetched <= 2 * CHUNK
    assert target.read_bytes() == file.read_bytes()


def test_a_header_has_its_limit(file: Path) -> None:
    weights = torch.empty(1, dtype=torch.uint8).expand(100 << 30)  # 1.6 million chunks
    with pytest.raises(ValueError, match="or set a larger 'digest_chunk'"):
        tensorizer_ops.save(file, {"w": weights}, hashes="chunked", options=SMALL)
    assert not os.path.exists(file)


def test_encrypted_files_list_digests_of_plaintext_only_if_asked(path: str, key: str) -> None:
    chunk = hashlib.sha256(raw(TENSORS["large"])[: 1 << 20]).digest()
    tensorizer_ops.save(path, TENSORS, hashes="chunked", options={"key": key})
    assert chunk not in Path(path).read_bytes()
    torch.ops.tensorizer.verify(path, options={"key": key})
    asked = {"key": key, "plain_digests": "true"}
    tensorizer_ops.save(path, TENSORS, hashes="chunked", options=asked)
    assert chunk in Path(path).read_bytes()
    opening = {"key": key, "require_authenticated": "true"}
    assert_same(tensorizer_ops.load(path, options=opening, verify="all"), TENSORS)
    pin = tensorizer_ops.digest(path, version=2, listed=True, options=opening)
    assert tensorizer_ops.digest(path, version=2, options=opening) == pin
    some = tensorizer_ops.load(path, names=["small"], options=opening | {"digest": pin})
    assert_same(some, {"small": TENSORS["small"]})
    with pytest.raises(ValueError, match="load all of it, without a slice, or without the option"):
        tensorizer_ops.load(path, slices={"large": slice(0, 9)}, options=opening | {"digest": pin})


@pytest.mark.parametrize("hashes", ["all", "chunked"])
def test_digests_of_other_tensors_are_not_passed_over(file: Path, hashes: str) -> None:
    tensorizer_ops.save(file, {"weight": torch.ones(4), "b": torch.zeros(6)}, hashes=hashes)
    whole = file.read_bytes()
    changes = [(b'"weight"', b'"veight"'), (b'"F32","shape":[4]', b'"I32","shape":[4]')]
    for old, new in changes:
        file.write_bytes(whole.replace(old, new))
        assert len(tensorizer_ops.load(file)) == 2
        with pytest.raises(errors.InvalidFormat, match="other names, types or shapes"):
            tensorizer_ops.load(file, verify="all")
        with pytest.raises(errors.InvalidFormat, match="other names, types or shapes"):
            tensorizer_ops.convert(file, file.with_suffix(".tensors"))
        assert not file.with_suffix(".tensors").exists()
