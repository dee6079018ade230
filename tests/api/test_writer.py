"""Writer: adds tensors to a file one at a time."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from support.raw_parse import parse
from support.samples import assert_same, random_bytes, zoo
from tensorizer_ops import errors

ops = torch.ops.tensorizer
Reader = torch.classes.tensorizer.Reader
Writer = torch.classes.tensorizer.Writer


def test_writer_cannot_be_pickled(path: str) -> None:
    writer = Writer(path, None)
    with pytest.raises(Exception, match=r"[Ww]riter|pickle"):
        pickle.dumps(writer)
    writer.abort()


@pytest.mark.parametrize("fsync", ["true", "false"])
@pytest.mark.parametrize("hashes", ["all", "none"])
def test_writer_takes_one_tensor_at_a_time(path: str, fsync: str, hashes: str) -> None:
    writer = Writer(path, {"fsync": fsync, "hashes": hashes})
    for name, tensor in zoo().items():
        assert not os.path.exists(path)
        writer.add(name, tensor)
    assert not os.path.exists(path)
    done, total = writer.progress()
    assert done == total > 0
    writer.close()
    assert os.listdir(os.path.dirname(path)) == ["model.tensors"]
    assert_same(ops.load(path, verify="all" if hashes == "all" else "none"), zoo())


def test_writer_types_and_module_indices(path: str) -> None:
    writer = Writer(path, None)
    writer.add("layer.w", torch.ones(2), 0, 3)
    writer.add("layer.b", torch.ones(2), 1, 65535)
    writer.add("entry", torch.ones(2), 2)
    for kind, index in ((3, 0), (-1, 0), (0, 65536), (0, -1)):
        with pytest.raises(errors.InvalidArgument):
            writer.add(f"wrong {kind} {index}", torch.ones(2), kind, index)
    writer.close()
    entries = parse(Path(path).read_bytes()).entries
    assert [(entry.kind, entry.module_index) for entry in entries] == [(0, 3), (1, 65535), (2, 0)]


def test_what_the_writer_refuses_does_not_spoil_it(path: str) -> None:
    writer = Writer(path, None)
    writer.add("x", torch.ones(2))
    for name, tensor in {
        "x": torch.ones(2),
        "": torch.ones(2),
        "s": torch.eye(2).to_sparse(),
    }.items():
        with pytest.raises(errors.InvalidArgument):
            writer.add(name, tensor)
    writer.add("y", torch.ones(3))
    writer.close()
    assert_same(ops.load(path, verify="all"), {"x": torch.ones(2), "y": torch.ones(3)})


def test_conflicting_names_end_the_writer(path: str) -> None:
    ops.save(path, zoo())
    writer = Writer(path, None)
    with pytest.raises(errors.InvalidArgument):
        writer.add('\x1e["x"]', torch.ones(2))
        writer.add('\x1e["x",0]', torch.ones(2))
        writer.close()
    del writer
    assert os.listdir(os.path.dirname(path)) == ["model.tensors"]
    assert_same(ops.load(path), zoo())


@pytest.mark.parametrize("end", ["abort", "drop", "abort twice"])
def test_an_unfinished_writer_leaves_nothing(path: str, end: str) -> None:
    for before in (None, zoo()):
        if before is not None:
            ops.save(path, before)
        writer = Writer(path, None)
        writer.add("x", random_bytes(1 << 20))
        if end != "drop":
            writer.abort()
        if end == "abort twice":
            writer.abort()
        del writer
        left = os.listdir(os.path.dirname(path))
        assert left == ([] if before is None else ["model.tensors"])
    assert_same(ops.load(path), zoo())


def test_writer_after_its_end(path: str) -> None:
    writer = Writer(path, None)
    writer.add("x", torch.ones(2))
    writer.close()
    with pytest.raises(errors.Error, match=r"closed"):
        writer.add("y", torch.ones(2))
    writer.abort()  # has no effect after close()
    assert_same(ops.load(path), {"x": torch.ones(2)})
    aborted = Writer(path + ".new", None)
    aborted.abort()
    for attempt in (lambda: aborted.add("y", torch.ones(2)), aborted.close):
        with pytest.raises(errors.Error, match=r"abort"):
            attempt()


def test_an_empty_writer(path: str) -> None:
    Writer(path, None).close()
    assert ops.load(path) == {}
