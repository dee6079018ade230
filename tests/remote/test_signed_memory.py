"""Tensors in memory beside signed files: hashes that others can match are not enough."""

from __future__ import annotations

import resource
import zlib
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.testing._internal.two_tensor import TwoTensor

import tensorizer_ops
from support.signer import Signer
from tensorizer_ops import Hashes, TensorDeserializer, checkpoint, errors, verify_tensors

# Data keeps its CRC32 if these bits are flipped anywhere: those of its generator polynomial.
SAME_CRC32 = (0x1DB710641).to_bytes(5, "little")


class Holder(torch.nn.Module):
    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(tensor)


def forged(tensor: torch.Tensor) -> torch.Tensor:
    """Return another tensor with the same CRC32."""
    data = tensor.numpy().tobytes()
    flipped = bytes(a ^ b for a, b in zip(data, SAME_CRC32, strict=False))
    other = flipped + data[len(flipped) :]
    assert zlib.crc32(other) == zlib.crc32(data)
    return torch.frombuffer(bytearray(other), dtype=tensor.dtype).view(tensor.shape)


@pytest.mark.parametrize("how", ["trust", "digest"])
@pytest.mark.parametrize("hashes", get_args(Hashes))
def test_crc32_does_not_vouch(tmp_path: Path, signer: Signer, hashes: Any, how: str) -> None:
    path = tmp_path / "m.tensors"
    tensor = torch.arange(700_000, dtype=torch.float32)
    tensorizer_ops.save(path, {"w": tensor}, hashes=hashes)
    tensorizer_ops.sign(path, key=signer.private)
    options = dict(signer.options) if how == "trust" else {"digest": tensorizer_ops.digest(path)}
    other = forged(tensor)
    verify_tensors(path, {"w": tensor}, options=options)
    with pytest.raises(errors.HashMismatch, match=r"'w' .* (the SHA-256|bytes) that w"):
        verify_tensors(path, {"w": other}, options=options)
    if hashes == "crc32":
        verify_tensors(path, {"w": other})
    loaded = TensorDeserializer(path, device="cpu", options=options)
    assert loaded.verify_module(Holder(tensor)) == (True, [("w", True)])
    assert loaded.verify_module(Holder(other)) == (False, [("w", False)])


def test_crc32_is_refused(tmp_path: Path, signer: Signer) -> None:
    path = tmp_path / "m.tensors"
    tensors = {"w": torch.ones(3)}
    tensorizer_ops.save(path, tensors, hashes="all")
    tensorizer_ops.sign(path, key=signer.private)
    with pytest.raises(errors.InvalidArgument, match="may have the same CRC32"):
        verify_tensors(path, tensors, verify="crc32", options=signer.options)


def test_a_digest_does_not_cover_hashes(tmp_path: Path) -> None:
    """Hashes in the headers of tensors may be those of another model with the same digest."""
    path = tmp_path / "m.tensors"
    tensors = {"a": torch.ones(3), "b": torch.zeros(3)}
    tensorizer_ops.save(path, tensors, hashes="sha256", options={"digests": True})
    options = {"digest": tensorizer_ops.digest(path, version=1)}
    verify_tensors(path, tensors, options=options)
    tensorizer_ops.save(path, tensors, hashes="sha256")
    with pytest.raises(errors.InvalidArgument, match="keeps no digests that its own digest is"):
        verify_tensors(path, tensors, options=options)


def test_closed_files_are_opened_again(tmp_path: Path, signer: Signer) -> None:
    path = tmp_path / "m.tensors"
    tensor = torch.ones(3)
    tensorizer_ops.save(path, {"w": tensor}, hashes="none")
    tensorizer_ops.sign(path, key=signer.private)
    loaded = TensorDeserializer(path, device="cpu", options=signer.options)
    tensorizer_ops.save(path, {"w": torch.zeros(3)}, hashes="none")
    with pytest.raises(errors.HashMismatch):
        loaded.verify_module(Holder(tensor))
    loaded.close()
    with pytest.raises(RuntimeError, match="is closed"):
        loaded.verify_module(Holder(tensor))


def _apply(signed: Path, mapped: dict[str, torch.Tensor], signer: Signer) -> None:
    older, delta = signed.with_name("older.tensors"), signed.with_name("delta.tensors")
    tensorizer_ops.save(older, mapped)
    tensorizer_ops.delta(older, signed, delta)
    tensorizer_ops.sign(delta, key=signer.private)
    tensorizer_ops.apply(delta, mapped, delta_options=signer.options)


def _load_ranges(signed: Path, mapped: dict[str, torch.Tensor], signer: Signer) -> None:
    folder = signed.with_name("checkpoint")
    writer = checkpoint.TensorizerStorageWriter(folder)
    dcp.save(tensorizer_ops.load(signed), storage_writer=writer, no_dist=True)
    tensorizer_ops.sign(folder, key=signer.private)
    reader = checkpoint.TensorizerStorageReader(folder, options=signer.options)
    dcp.load(mapped, storage_reader=reader, no_dist=True)


FILLS = {
    "load_into": lambda signed, mapped, signer: tensorizer_ops.load_into(
        mapped, signed, options=signer.options
    ),
    "apply": _apply,
    "dcp": _load_ranges,
}


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("change", ["written", "cut off"])
def test_no_file_changes_what_was_filled(
    tmp_path: Path, signer: Signer, fill: str, change: str
) -> None:
    """Tensors may be pages of a file that somebody else can write."""
    signed, other = tmp_path / "signed.tensors", tmp_path / "other.tensors"
    tensors = {"w": torch.arange(100_000), "same": torch.arange(50_000)}
    tensorizer_ops.save(signed, tensors)
    tensorizer_ops.sign(signed, key=signer.private)
    tensorizer_ops.save(other, {**tensors, "w": tensors["w"] + 1})
    mapped = tensorizer_ops.load(other)
    FILLS[fill](signed, mapped, signer)
    data = bytes(other.stat().st_size)
    if change == "cut off":
        other.write_bytes(data)  # which ends it at 0 bytes first
    else:
        with other.open("r+b") as file:
            file.write(data)
    for name, tensor in tensors.items():
        assert torch.equal(mapped[name], tensor), name


def test_nothing_is_filled_that_cannot_be_detached(tmp_path: Path, signer: Signer) -> None:
    signed, other = tmp_path / "signed.tensors", tmp_path / "other.tensors"
    tensorizer_ops.save(signed, {"w": torch.ones(9)})
    tensorizer_ops.sign(signed, key=signer.private)
    tensorizer_ops.save(other, {"w": torch.zeros(9)})
    mapped = tensorizer_ops.load(other)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tensorizer_ops.Reader(signed, options=signer.options) as reader:
        assert list(reader) == ["w"]  # so the file is open
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(OSError, match="cannot read '/proc/self/maps': Too many open files"):
                reader.load_into(mapped)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not mapped["w"].any()
        reader.load_into(mapped)
    assert mapped["w"].all()


def test_the_parts_of_subclasses_are_detached(tmp_path: Path, signer: Signer) -> None:
    folder, other = tmp_path / "checkpoint", tmp_path / "other.tensors"
    writer = checkpoint.TensorizerStorageWriter(folder)
    dcp.save({"w": torch.ones(9)}, storage_writer=writer, no_dist=True)
    tensorizer_ops.sign(folder, key=signer.private)
    tensorizer_ops.save(other, {"a": torch.zeros(9), "b": torch.zeros(9)})
    state = {"w": TwoTensor(*tensorizer_ops.load(other).values())}
    checkpoint.load(folder, state, options=signer.options)
    other.write_bytes(bytes(other.stat().st_size))
    assert state["w"].a.all()
    assert state["w"].b.all()
