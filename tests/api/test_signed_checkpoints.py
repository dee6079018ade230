"""Checkpoints of ranks that are signed: all of their files are of one save."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

import tensorizer_ops
from support.command import run
from support.signer import Signer
from tensorizer_ops import checkpoint, errors
from tensorizer_ops._dcp import storage


def load(place: Path, signer: Signer) -> float:
    return float(checkpoint.load(place, options=signer.options)["w"].sum())


def consolidate(place: Path, signer: Signer) -> float:
    made = place.with_name("made.tensors")
    checkpoint.consolidate(place, made, source_options=signer.options)
    return float(tensorizer_ops.load(made)["w"].sum())


def fill_with_dcp(place: Path, signer: Signer) -> float:
    reader = checkpoint.TensorizerStorageReader(place, options=signer.options)
    state = {"w": torch.zeros(3)}
    torch.distributed.checkpoint.load(state, storage_reader=reader, no_dist=True)
    return float(state["w"].sum())


READS = pytest.mark.parametrize("read", [load, consolidate, fill_with_dcp])
Read = Callable[[Path, Signer], float]


def saved(place: Path, sign: Path | None = None) -> Path:
    """Saves a checkpoint, and returns the file of its rank."""
    writer = checkpoint.TensorizerStorageWriter(place)
    writer.sign = sign
    state = {"w": torch.ones(3)}
    torch.distributed.checkpoint.save(state, storage_writer=writer, no_dist=True)
    (file,) = place.glob("rank-*.tensors")
    return file


def rewrite(file: Path) -> None:
    """Changes the tensors of a file that is signed again under its name."""
    tensors = tensorizer_ops.load(file, copy=True)
    tensors["w"] += 1
    tensorizer_ops.save(file, tensors, metadata=tensorizer_ops.metadata(file))


@READS
def test_files_of_a_checkpoint_are_of_one_bundle(
    tmp_path: Path, signer: Signer, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, newer = tmp_path / "place", tmp_path / "newer"
    name = saved(place).name
    shutil.copytree(place, newer)
    rewrite(newer / name)
    for folder in (place, newer):
        tensorizer_ops.sign(folder, key=signer.private)
    assert (read(place, signer), read(newer, signer)) == (3, 6)
    opened = storage.opened

    def replaced(*given: Any) -> Any:
        shutil.copytree(newer, place, dirs_exist_ok=True)
        return opened(*given)

    monkeypatch.setattr(storage, "opened", replaced)
    with pytest.raises((errors.HashMismatch, CheckpointException), match="root digest"):
        read(place, signer)


@READS
def test_files_with_signatures_of_their_own_are_those_that_were_saved(
    tmp_path: Path, signer: Signer, read: Read
) -> None:
    place = tmp_path / "place"
    file = saved(place, signer.private)
    assert read(place, signer) == 3
    rewrite(file)
    tensorizer_ops.sign(file, key=signer.private)
    with pytest.raises((errors.HashMismatch, CheckpointException), match="root digest"):
        read(place, signer)
    # Nor is the bundle of the folder used for one of them.
    tensorizer_ops.sign(place, key=signer.private)
    file.with_name(file.name + ".sig").unlink()
    with pytest.raises((errors.NotFound, CheckpointException), match=r"\.tensors\.sig"):
        read(place, signer)
    for signature in place.glob("*.tensors.sig"):
        signature.unlink()
    tensorizer_ops.sign(place, key=signer.private)
    assert read(place, signer) == 6


def test_verify_compares_the_root_digests_of_files(tmp_path: Path, signer: Signer) -> None:
    file = saved(tmp_path / "place", signer.private)
    command = ("verify", "-o", f"trust={signer.options['trust']}", tmp_path / "place")
    run(*command)
    rewrite(file)
    tensorizer_ops.sign(file, key=signer.private)
    assert "root digest" in run(*command, status=1).stderr


@READS
def test_files_that_were_signed_one_by_one(tmp_path: Path, signer: Signer, read: Read) -> None:
    """Nobody has signed what they are together."""
    place = tmp_path / "place"
    saved(place)
    for file in [*place.iterdir()]:
        tensorizer_ops.sign(file, key=signer.private)
    with pytest.raises((errors.Crypto, CheckpointException), match="does not list what is signed"):
        read(place, signer)


def test_root_digests_that_are_none(tmp_path: Path, signer: Signer) -> None:
    saved(tmp_path, signer.private)
    file = tmp_path / "checkpoint.tensors"
    texts = tensorizer_ops.metadata(file)
    (key,) = texts
    for roots in ([], {"x": 1}, {"x": "0"}):
        listed = json.loads(texts[key]) | {"roots": roots}
        tensorizer_ops.save(file, {}, metadata={key: json.dumps(listed)})
        with pytest.raises(errors.InvalidFormat, match="the list of files is damaged"):
            checkpoint.load(tmp_path)


def test_the_signature_of_a_list_that_is_taken_away(tmp_path: Path, signer: Signer) -> None:
    saved(tmp_path, signer.private)
    (tmp_path / "checkpoint.tensors.sig").unlink()
    with pytest.raises(errors.Crypto, match=r"there is no 'model\.sig' in it"):
        checkpoint.load(tmp_path, options=signer.options)
