"""Digests of version 2, which are made of the digests of chunks."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tensorizer import TensorSerializer
from torch import Tensor

import tensorizer_ops
from support.raw_parse import parse
from support.samples import assert_same, raw, sample, stored_dtype, zoo
from tensorizer_ops.errors import HashMismatch, InvalidArgument

ops = torch.ops.tensorizer

CHUNK = 1 << 20
TENSORS = {
    **zoo(),
    "large": sample(torch.float32, (1500, 1000), 1),  # 5.7 chunks
    "empty": torch.empty(0, 3, dtype=torch.bfloat16),
    "scalar": torch.tensor(7),
}
LISTED = {"hashes": "chunked"}


@pytest.fixture(autouse=True)
def key() -> Iterator[None]:
    tensorizer_ops.keys.add("chunks", key=bytes(range(32)))
    yield
    tensorizer_ops.keys.remove("chunks")


def by_hand(tensors: dict[str, Tensor]) -> str:
    """Computes a digest as docs/format.md defines it."""

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    message = text(b"tensorizer_ops model digest 2") + struct.pack("<Q", len(tensors))
    for name in sorted(tensors, key=str.encode):
        tensor = tensors[name]
        data = raw(tensor)
        message += text(name.encode()) + text(stored_dtype(tensor.dtype))
        message += struct.pack("<Q", tensor.dim()) + struct.pack(f"<{tensor.dim()}Q", *tensor.shape)
        message += struct.pack("<Q", len(data))
        for at in range(0, len(data), CHUNK):
            message += hashlib.sha256(data[at : at + CHUNK]).digest()
    return "v2:" + hashlib.sha256(message).hexdigest()


PIN = by_hand(TENSORS)


@pytest.mark.parametrize(
    ("hashes", "options"),
    [
        ("none", {}),
        ("all", {"digests": "true"}),
        ("chunked", {}),
        ("chunked", {"digest_chunk": "65536"}),
        ("all", {"key": "named:chunks"}),
    ],
    ids=lambda value: str(value),
)
def test_it_is_the_same_for_every_file(path: str, hashes: str, options: dict[str, str]) -> None:
    tensorizer_ops.save(path, TENSORS, hashes=hashes, options=options)
    opening = {name: value for name, value in options.items() if name == "key"}
    assert tensorizer_ops.digest(path, version=2, options=opening) == PIN
    assert_same(ops.load(path, options=opening | {"digest": PIN}), TENSORS)
    ops.verify(path, options=opening | {"digest": PIN})


def test_it_is_the_same_for_safetensors_and_for_modules(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5))
    pin = by_hand(module.state_dict())
    ours, theirs = str(tmp_path / "m.tensors"), str(tmp_path / "m.safetensors")
    serializer = TensorSerializer(ours)
    serializer.write_module(module)
    serializer.close()
    tensorizer_ops.convert(ours, theirs)
    assert tensorizer_ops.digest(ours) != tensorizer_ops.digest(theirs)
    for path in (ours, theirs):
        assert tensorizer_ops.digest(path, version=2) == pin
        assert_same(ops.load(path, options={"digest": pin}), module.state_dict())


def test_ties_count_as_tensors(path: str) -> None:
    tied = {"a": TENSORS["large"], "b": TENSORS["large"]}
    tensorizer_ops.save(path, tied, options={"share": "true"}, **LISTED)
    assert tensorizer_ops.digest(path, version=2) == by_hand(tied)
    assert tensorizer_ops.digest(path, version=2, listed=True) == by_hand(tied)


def test_the_listed_digest_reads_no_data(path: str) -> None:
    tensorizer_ops.save(path, TENSORS, hashes="chunked", options={"digests": "true"})
    first = tensorizer_ops.digest(path)
    data = bytearray(Path(path).read_bytes())
    data[parse(bytes(data))["large"].data_offset + 3] ^= 1
    Path(path).write_bytes(data)
    assert tensorizer_ops.digest(path, version=2, listed=True) == PIN
    assert tensorizer_ops.digest(path, listed=True) == first
    assert tensorizer_ops.digest(path, version=2) != PIN
    reader = torch.classes.tensorizer.Reader(path, None)
    assert reader.digest(1, 2, True) == PIN
    assert reader.stats()["bytes"] == 0


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("hashes", ["all", "chunked"])
def test_a_file_that_lists_nothing_says_how_to_save_it(
    path: str, hashes: str, version: int
) -> None:
    tensorizer_ops.save(
        path,
        TENSORS,
        hashes=hashes,
        options={"digest_chunk": "65536"} if hashes == "chunked" else {},
    )
    how = "the option 'digests'" if version == 1 else 'hashes="chunked" and chunks of 1048576'
    with pytest.raises(InvalidArgument, match=how):
        tensorizer_ops.digest(path, version=version, listed=True)


@pytest.mark.parametrize("text", ["v2:", "v1:" + "0" * 64, "v2:" + "0" * 63])
def test_a_malformed_pin_is_refused(path: str, text: str) -> None:
    tensorizer_ops.save(path, TENSORS)
    with pytest.raises(InvalidArgument, match="64 hexadecimal digits"):
        ops.load(path, options={"digest": text})
    with pytest.raises(InvalidArgument, match="must be 1 or 2"):
        tensorizer_ops.digest(path, version=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("listed", [False, True])
def test_pinned_parts(path: str, listed: bool) -> None:
    tensorizer_ops.save(path, TENSORS, hashes="chunked" if listed else "all")
    some = {name: TENSORS[name] for name in ("large", "int8")}
    rows = (slice(600, 700), slice(3, 5))
    if not listed:
        with pytest.raises(InvalidArgument, match="chunks of 1048576 bytes"):
            tensorizer_ops.load(path, names=list(some), options={"digest": PIN})
        with pytest.raises(InvalidArgument, match="use the file's digest of version 2"):
            tensorizer_ops.load(path, slices={"large": rows}, options={"digest": PIN})
        return
    assert_same(tensorizer_ops.load(path, names=list(some), options={"digest": PIN}), some)
    part = tensorizer_ops.load(
        path, names=["large"], slices={"large": rows}, options={"digest": PIN}
    )
    assert_same(part, {"large": TENSORS["large"][rows]})
    wrong = "v2:" + "0" * 64
    with pytest.raises(HashMismatch, match=f"its digest is {PIN}, but must be {wrong}"):
        tensorizer_ops.load(path, names=list(some), options={"digest": wrong})
    data = bytearray(Path(path).read_bytes())
    data[parse(bytes(data))["large"].data_offset + 2 * CHUNK + 3] ^= 1  # in row 524
    Path(path).write_bytes(data)
    with pytest.raises(HashMismatch, match=r"'large'.*: its 1048576 bytes from offset"):
        tensorizer_ops.load(path, names=list(some), options={"digest": PIN})
    with pytest.raises(HashMismatch, match=r"'large'.*: its 1048576 bytes from offset"):
        tensorizer_ops.load(path, names=["large"], slices={"large": rows}, options={"digest": PIN})
    other = {"large": (slice(0, 100),)}
    tensorizer_ops.load(path, names=["large"], slices=other, options={"digest": PIN})


@pytest.mark.parametrize("listed", [False, True])
def test_damage_is_noticed(path: str, tmp_path: Path, listed: bool) -> None:
    tensorizer_ops.save(path, TENSORS, hashes="chunked" if listed else "all")
    data = bytearray(Path(path).read_bytes())
    begin = parse(bytes(data))["large"].data_offset
    data[begin + CHUNK + 3] ^= 1
    Path(path).write_bytes(data)
    damage = f"from offset {begin + CHUNK} on" if listed else "another model"
    outputs = {name: torch.empty_like(tensor) for name, tensor in TENSORS.items()}
    with pytest.raises(HashMismatch, match=damage):
        ops.load_into(path, list(outputs), list(outputs.values()), options={"digest": PIN})
    assert_same({"large": outputs["large"]}, {"large": torch.zeros_like(TENSORS["large"])})
    with pytest.raises(HashMismatch, match=damage):
        ops.verify(path, options={"digest": PIN})
    copy = tmp_path / "copy"
    with pytest.raises(HashMismatch, match=damage):
        tensorizer_ops.convert(path, copy, source_options={"digest": PIN})
    assert not copy.exists()


@pytest.mark.parametrize("options", [{}, {"key": "named:chunks"}], ids=["plain", "encrypted"])
@pytest.mark.parametrize("hashes", ["all", "chunked"])
def test_pinned_rewrites(path: str, tmp_path: Path, hashes: str, options: dict[str, str]) -> None:
    tensors = TENSORS | {"meta": torch.empty(3, 4, device="meta")}
    tensorizer_ops.save(path, tensors, hashes=hashes, options=options)
    pin = tensorizer_ops.digest(path, version=2, options=options)
    copy = tmp_path / "copy"
    tensorizer_ops.convert(path, copy, source_options=options | {"digest": pin})
    assert tensorizer_ops.digest(copy, version=2) == pin
    with pytest.raises(HashMismatch, match="another model"):
        wrong = {"digest": "v2:" + "0" * 64}
        tensorizer_ops.convert(path, copy, source_options=options | wrong)
