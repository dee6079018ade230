"""The digest of a whole file, and loads that are pinned to one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tensorizer import TensorDeserializer, TensorSerializer

import tensorizer_ops
from support.process import Drain
from support.raw_parse import parse
from support.samples import assert_same, raw, sample, stored_dtype, zoo
from tensorizer_ops.errors import HashMismatch, InvalidArgument

ops = torch.ops.tensorizer

TENSORS = {
    **zoo(),
    "large": sample(torch.float32, (1500, 1000), 1),
    "empty": torch.empty(0, 3, dtype=torch.bfloat16),
    "scalar": torch.tensor(7),
}


@pytest.fixture(autouse=True)
def key() -> Iterator[None]:
    tensorizer_ops.keys.add("digest", key=bytes(range(32)))
    yield
    tensorizer_ops.keys.remove("digest")


def by_hand(tensors: dict[str, torch.Tensor]) -> str:
    """Computes a digest as docs/format.md defines it."""

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    message = text(b"tensorizer_ops model digest 1") + struct.pack("<Q", len(tensors))
    for name in sorted(tensors, key=str.encode):
        tensor = tensors[name]
        message += text(name.encode()) + b"\2" + text(stored_dtype(tensor.dtype))
        message += struct.pack("<Q", tensor.dim()) + struct.pack(f"<{tensor.dim()}Q", *tensor.shape)
        message += hashlib.sha256(raw(tensor)).digest()
    return hashlib.sha256(message).hexdigest()


def test_it_is_the_same_for_every_file(path: str) -> None:
    expected = by_hand(TENSORS)
    turned = dict(reversed(TENSORS.items()))
    for tensors in (TENSORS, turned):
        for hashes in ("all", "none"):
            for options in ({}, {"key": "named:digest"}, {"digests": "true"}):
                ops.save(path, tensors, hashes=hashes, options=options)
                key = {name: value for name, value in options.items() if name == "key"}
                assert tensorizer_ops.digest(path, options=key) == expected
    full = {name: tensor for name, tensor in TENSORS.items() if tensor.numel()}
    serializer = TensorSerializer(path)
    serializer.write_state_dict(full)
    serializer.close()
    assert tensorizer_ops.digest(path) == by_hand(full)


@pytest.mark.parametrize("change", ["name", "dtype", "shape", "data", "kind", "more"])
def test_it_is_another_one_for_another_model(path: str, change: str) -> None:
    tensors = {"a": torch.zeros(4), "b": torch.zeros(2, 2)}
    ops.save(path, tensors)
    before = tensorizer_ops.digest(path)
    kind = 2
    if change == "name":
        tensors = {"a": tensors["a"], "c": tensors["b"]}
    elif change == "dtype":
        tensors["b"] = tensors["b"].to(torch.int32)
    elif change == "shape":
        tensors["b"] = torch.zeros(4)
    elif change == "data":
        tensors["b"][1, 1] = -0.0
    elif change == "more":
        tensors["c"] = torch.empty(0)
    else:
        kind = 0
    writer = torch.classes.tensorizer.Writer(path, None)
    for name, tensor in tensors.items():
        writer.add(name, tensor, kind, 0)
    writer.close()
    assert tensorizer_ops.digest(path) != before


@pytest.mark.parametrize("options", [{}, {"key": "named:digest"}], ids=["plain", "encrypted"])
@pytest.mark.parametrize("listed", [False, True])
def test_pinned_loads(path: str, listed: bool, options: dict[str, str]) -> None:
    ops.save(path, TENSORS, hashes="none", options=options | {"digests": str(listed).lower()})
    pinned = options | {"digest": by_hand(TENSORS)}
    assert_same(ops.load(path, options=pinned), TENSORS)
    ops.verify(path, options=pinned)
    outputs = {name: torch.empty_like(tensor) for name, tensor in TENSORS.items()}
    ops.load_into(path, list(outputs), list(outputs.values()), options=pinned)
    assert_same(outputs, TENSORS)
    if listed:
        loaded = ops.load(path, names=["large", "int8"], options=pinned)
        assert_same(loaded, {name: TENSORS[name] for name in ("large", "int8")})
    else:
        with pytest.raises(InvalidArgument, match="keeps no digests"):
            ops.load(path, names=["large", "int8"], options=pinned)
    wrong = options | {"digest": "0" * 64}
    for names in (None, ["large"]) if listed else (None,):
        with pytest.raises(HashMismatch, match="another model"):
            ops.load(path, names=names, options=wrong)
    with pytest.raises(HashMismatch, match="another model"):
        ops.load_into(path, list(outputs), list(outputs.values()), options=wrong)
    # With a list of digests in the file, a mismatch is found before any data is read.
    left = TENSORS if listed else {name: torch.zeros_like(t) for name, t in TENSORS.items()}
    assert_same(outputs, left)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("name", ["large", "int8"])
def test_damage_is_noticed(path: str, listed: bool, name: str) -> None:
    ops.save(path, TENSORS, options={"digests": str(listed).lower()})
    data = bytearray(Path(path).read_bytes())
    begin = parse(bytes(data))[name].data_offset
    data[begin + 3] ^= 1
    Path(path).write_bytes(data)
    damage = (
        f"'{name}'.*: its bytes from offset {begin} on" if listed else "some of its data is not"
    )
    with pytest.raises(HashMismatch, match=damage):
        ops.load(path, options={"digest": by_hand(TENSORS)})
    output = torch.ones_like(TENSORS[name])
    if listed:
        with pytest.raises(HashMismatch, match=damage):
            ops.load_into(path, [name], [output], options={"digest": by_hand(TENSORS)})


@pytest.mark.parametrize("options", [{}, {"key": "named:digest"}], ids=["plain", "encrypted"])
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("to", ["a file", "a pipe"])
def test_pinned_rewrites(
    path: str, tmp_path: Path, listed: bool, options: dict[str, str], to: str
) -> None:
    target = str(tmp_path / "target")

    def rewrite(digest: str) -> None:
        reader = torch.classes.tensorizer.Reader(path, options | {"digest": digest})
        if to == "a file":
            reader.rewrite(target, "all", {"key": "named:digest"}, 2)
            return
        pipe = f"{target} pipe"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(pipe)
        with Drain(pipe) as drain:
            reader.rewrite(pipe, "all", {"key": "named:digest"}, 2)
            drain.wait()
        Path(target).write_bytes(drain.data)

    meta = TENSORS | {"meta": torch.empty(3, 4, device="meta")}
    ops.save(path, meta, hashes="none", options=options | {"digests": str(listed).lower()})
    digest = tensorizer_ops.digest(path, options=options)
    rewrite(digest)
    assert tensorizer_ops.digest(target, options={"key": "named:digest"}) == digest
    os.unlink(target)
    with pytest.raises(HashMismatch, match="another model"):
        rewrite("0" * 64)
    assert not os.path.exists(target)
    if options:
        return  # the MACs already cover every byte
    data = bytearray(Path(path).read_bytes())
    data[parse(bytes(data))["large"].data_offset + 3] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(HashMismatch, match="'large'" if listed else "another model"):
        rewrite(digest)
    assert not os.path.exists(target)


def test_the_list_is_as_the_format_says(path: str) -> None:
    ops.save(path, TENSORS, options={"digests": "true"})
    data = Path(path).read_bytes()
    at = data.index(b"|TZX|")
    assert struct.unpack_from("<HI", data, at + 5) == (2, 32 * len(TENSORS))
    expected = b"".join(hashlib.sha256(raw(tensor)).digest() for tensor in TENSORS.values())
    assert data[at + 11 : at + 11 + len(expected)] == expected
    with TensorDeserializer(path, device="cpu", verify_hash=True) as loaded:
        assert_same(loaded, TENSORS)
