"""Tied tensors in streams, encrypted and pinned files, in copies of files, and in modules."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.process import Drain, feed
from support.raw_parse import parse
from support.samples import assert_same, same, sample
from support.tied import NAMES, SHARE, STORED, WEIGHT, outputs, share_memory, share_nothing, tied
from tensorizer_ops.errors import Cancelled, HashMismatch, InvalidArgument, InvalidFormat

ops = torch.ops.tensorizer


@pytest.fixture
def shared(path: str) -> str:
    ops.save(path, tied(), options=SHARE)
    return path


def test_everything_loads_from_a_pipe(shared: str) -> None:
    data = Path(shared).read_bytes()
    fifo = shared + ".fifo"
    with feed(fifo, data):
        loaded = ops.load(fifo, verify="all")
    assert_same(loaded, tied())
    assert share_memory(loaded["w"], loaded["w.3"])
    with feed(fifo + "1", data):
        tensors = ops.load_tensors(fifo + "1", list(reversed(NAMES)), verify="all")
    assert_same(dict(zip(reversed(NAMES), tensors, strict=True)), dict(reversed(tied().items())))
    assert share_nothing(*tensors)
    out = outputs()
    out["w"] = out["w"].half()
    with feed(fifo + "2", data):
        ops.load_into(fifo + "2", NAMES, list(out.values()), cast=True)
    assert_same(out, {**tied(), "w": WEIGHT.half()})
    with feed(fifo + "3", data):
        ops.verify(fifo + "3")
    with feed(fifo + "4", data):
        assert ops.names(fifo + "4") == NAMES
    with feed(fifo + "5", data):
        part = tensorizer_ops.load(fifo + "5", slices={"half.2": slice(2)}, names=["w.2", "half.2"])
    assert same(part["half.2"], tied()["half"][:2])
    with (
        feed(fifo + "6", data),
        pytest.raises(InvalidArgument, match="can be read only once"),
    ):
        tensorizer_ops.load(fifo + "6", slices={"w": slice(2)}, names=["w.2", "w"])


def test_saves_to_a_pipe(tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    with Drain(fifo) as drain:
        ops.save(fifo, tied(), options=SHARE)
        drain.wait()
    memory = torch.frombuffer(bytearray(drain.data), dtype=torch.uint8)
    loaded = ops.open(memory).load(None, None, None, "all")
    assert_same(loaded, tied())
    assert share_memory(loaded["w"], loaded["w.2"])


# ---- digests and keys


def test_the_digest_is_that_of_the_tensors(path: str) -> None:
    ops.save(path, tied())
    expected = tensorizer_ops.digest(path)
    for options in (SHARE, {**SHARE, "digests": "true"}):
        ops.save(path, tied(), options=options)
        assert tensorizer_ops.digest(path) == expected
        pin = {"digest": expected}
        assert_same(ops.load(path, options=pin), tied())
        ops.verify(path, options=pin)
        out = outputs()
        ops.load_into(path, NAMES, list(out.values()), options=pin)
        assert_same(out, tied())
        with pytest.raises(HashMismatch, match="this is another model"):
            out = outputs()
            ops.load_into(path, NAMES, list(out.values()), options={"digest": "0" * 64})
        if "digests" in options:
            assert same(ops.load(path, names=["w.2"], options=pin)["w.2"], WEIGHT)
        else:
            assert not any(tensor.any() for tensor in out.values())
            with pytest.raises(InvalidArgument, match="keeps no digests"):
                ops.load(path, names=["w.2"], options=pin)


def test_encrypted_files(path: str) -> None:
    tensorizer_ops.keys.add("ties", key=bytes(range(32)))
    try:
        key = {"key": "named:ties"}
        ops.save(path, tied(), options={**SHARE, **key})
        strict = {**key, "require_authenticated": "true"}
        loaded = ops.load(path, verify="all", options=strict)
        assert_same(loaded, tied())
        assert share_memory(loaded["w"], loaded["w.2"])
        out = outputs()
        ops.load_into(path, NAMES, list(out.values()), options=key)
        assert_same(out, tied())
        parts = tensorizer_ops.load(
            path, names=["w", "w.2"], slices={"w": slice(2), "w.2": slice(1, 3)}, options=key
        )
        assert same(parts["w.2"], WEIGHT[1:3])
        data = bytearray(Path(path).read_bytes())
        data[data.index(b"w.2")] ^= 1
        Path(path).write_bytes(data)
        with pytest.raises(tensorizer_ops.errors.Crypto):
            ops.load(path, options=key)
    finally:
        tensorizer_ops.keys.remove("ties")


# ---- copies of files


def ties_of(path: str) -> dict[str, bytes]:
    return {entry.name.decode(): entry.data for entry in parse(Path(path).read_bytes()).entries}


def test_copies_keep_ties(shared: str) -> None:
    copy = shared + "2"
    tensorizer_ops.convert(shared, copy)
    assert list(ties_of(copy)) == STORED
    assert ops.names(copy) == NAMES
    loaded = ops.load(copy, verify="all")
    assert_same(loaded, tied())
    assert share_memory(loaded["w"], loaded["w.3"])
    tensorizer_ops.keys.add("ties", key=bytes(range(32)))
    try:
        tensorizer_ops.encrypt(shared, copy, key="named:ties", target_options=SHARE)
        tensorizer_ops.decrypt(copy, shared + "3", key="named:ties")
        assert ops.names(shared + "3") == NAMES
        assert list(ties_of(shared + "3")) == STORED
    finally:
        tensorizer_ops.keys.remove("ties")
    with feed(shared + ".fifo", Path(shared).read_bytes()):
        tensorizer_ops.convert(shared + ".fifo", copy)
    assert_same(ops.load(copy, verify="all"), tied())


def test_copies_without_ties(shared: str, tmp_path: Path) -> None:
    target = str(tmp_path / "copy.tensors")
    tensorizer_ops.convert(shared, target, target_options={"share": "false"})
    assert list(ties_of(target)) == NAMES
    assert_same(ops.load(target, verify="all"), tied())
    digest = tensorizer_ops.digest(shared)
    assert tensorizer_ops.digest(target) == digest
    converted = str(tmp_path / "m.safetensors")
    tensorizer_ops.convert(shared, converted, source_options={"digest": digest})
    assert_same(ops.load(converted, verify="all"), tied())
    tensorizer_ops.convert(shared, converted, target_options={"max_shard_size": "100000"})
    shards = list(tmp_path.glob("m-*.safetensors"))
    assert len(shards) == 3
    assert_same(
        dict(sorted(ops.load(converted + ".index.json").items())), dict(sorted(tied().items()))
    )
    with pytest.raises(InvalidArgument, match="stores the data of every name"):
        tensorizer_ops.convert(shared, converted, target_options=SHARE)
    with (
        feed(shared + ".fifo", Path(shared).read_bytes()),
        pytest.raises(InvalidArgument, match=r"'w\.2' .*which the new file would store twice"),
    ):
        tensorizer_ops.convert(shared + ".fifo", converted)


# ---- modules


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(sample(torch.float32, (4, 6)))
        self.child = torch.nn.Linear(6, 4, bias=False)
        self.child.weight = self.w
        self.register_buffer("b", torch.arange(3))


def test_modules(path: str) -> None:
    model = Tied()
    tensorizer_ops.save(path, model.state_dict(), options=SHARE)
    assert list(ties_of(path)) == ["w", "b"]
    target = Tied()
    target.load_state_dict(tensorizer_ops.load(path))
    assert same(target.child.weight, model.w)
    target = Tied()
    target.load_state_dict(tensorizer_ops.load(path), assign=True)
    assert share_memory(target.w, target.child.weight)
    for device in ("cpu", "meta"):
        target = Tied()
        with torch.no_grad():
            target.w.zero_()
        target = target.to(device)
        target.child.weight = target.w
        tensorizer_ops.load_into(target, path)
        assert target.w is target.child.weight
        assert same(target.w, model.w)
        separate = Tied()
        separate.child.weight = torch.nn.Parameter(torch.zeros(4, 6))
        separate = separate.to(device)
        tensorizer_ops.load_into(separate, path)
        assert same(separate.w, model.w)
        assert same(separate.child.weight, model.w)
        assert share_nothing(separate.w, separate.child.weight)


def test_damaged_records_are_refused(shared: str) -> None:
    data = bytearray(Path(shared).read_bytes())
    data[data.index(b"w.3") - 9] = 9  # the index entry of the tie
    Path(shared).write_bytes(data)
    with pytest.raises(InvalidFormat, match=r"a tie, 'w\.3', to index entry 9 of 4"):
        ops.names(shared)


def cancel_at(share: float, reader: Any, ended: threading.Event) -> None:
    """Cancels a load once this share of it is done."""
    while not ended.is_set():
        done, total = reader.progress()
        if total and done >= share * total:
            reader.cancel()
            return


def test_a_cancel_leaves_complete_tensors_or_zeros(path: str) -> None:
    """Also of tied tensors, which are copied once one of them has been verified."""
    weight = torch.ones(4 << 20)
    names = [f"w.{i}" for i in range(6)]
    ops.save(path, dict.fromkeys(names, weight), options=SHARE)
    old = torch.full_like(weight, 7)
    cancelled = 0
    for share in itertools.cycle(i / 10 for i in range(11)):
        out = [old.clone() for _ in names]
        reader = torch.classes.tensorizer.Reader(path, None)
        ended = threading.Event()
        thread = threading.Thread(target=cancel_at, args=(share, reader, ended))
        thread.start()
        try:
            reader.load_into(names, out, "all", 1, False)
        except Cancelled:
            cancelled += 1
            # A load that is cancelled while it opens the file has not touched the tensors.
            if not all(torch.equal(tensor, old) for tensor in out):
                assert all(torch.equal(tensor, weight) or not tensor.any() for tensor in out)
        finally:
            ended.set()
            thread.join()
        if cancelled == 10:
            break
