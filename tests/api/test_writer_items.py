"""tensorizer_ops.Writer: adds tensors to a file one at a time."""

from __future__ import annotations

import copy
import io
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.file_objects import InOrder
from support.samples import assert_same, zoo
from tensorizer_ops import Reader, Writer, errors


def test_the_file_appears_at_the_end_of_the_block(path: str) -> None:
    with Writer(path, metadata={"step": "7"}, expected_tensors=40, threads=1) as writer:
        for name, tensor in zoo().items():
            writer[name] = tensor
        assert not os.path.exists(path)
        done, total = writer.progress()
        assert done == total > 0
        writer.cancel()  # nothing runs
        assert repr(writer) == f"<tensorizer_ops.Writer to {path!r}: {len(zoo())} tensors, open>"
    assert repr(writer).endswith("closed>")
    assert_same(tensorizer_ops.load(path, verify="all"), zoo())
    assert tensorizer_ops.metadata(path) == {"step": "7"}
    writer.close()
    writer.abort()  # has no effect after close()
    assert_same(tensorizer_ops.load(path), zoo())


@pytest.mark.parametrize("end", ["error", "abort", "drop"])
def test_an_unfinished_file_leaves_the_old_one(path: str, end: str) -> None:
    tensorizer_ops.save(path, zoo())

    def write() -> None:
        with Writer(path) as writer:
            writer["x"] = torch.ones(3)
            if end == "error":
                raise ZeroDivisionError
            writer.abort()
            assert repr(writer).endswith("1 tensor, aborted>")

    if end == "error":
        with pytest.raises(ZeroDivisionError):
            write()
    elif end == "abort":
        write()
    else:
        Writer(path).add("x", torch.ones(3))
    assert os.listdir(os.path.dirname(path)) == ["model.tensors"]
    assert_same(tensorizer_ops.load(path), zoo())


def test_what_it_refuses_does_not_spoil_it(path: str) -> None:
    with Writer(path) as writer:
        writer["x"] = torch.ones(2)
        other: Any
        for name, other in {
            "x": torch.ones(2),
            "": torch.ones(2),
            "s": torch.eye(2).to_sparse(),
            "n": 7,
            "\udc80": torch.ones(2),
        }.items():
            with pytest.raises(errors.InvalidArgument):
                writer[name] = other
        writer["y"] = torch.nn.Parameter(torch.ones(3))
        assert "2 tensors" in repr(writer)
    assert_same(tensorizer_ops.load(path), {"x": torch.ones(2), "y": torch.ones(3)})
    for attempt in (lambda: writer.add("z", torch.ones(1)), writer.__enter__):
        with pytest.raises(ValueError, match="closed"):
            attempt()


def test_a_failed_write_aborts_it(path: str) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError("full")

    writer = Writer(Full())
    with pytest.raises(OSError, match="full"):
        writer["x"] = torch.ones(2)
    assert repr(writer) == "<tensorizer_ops.Writer to a Full: 0 tensors, aborted>"
    for attempt in (lambda: writer.add("z", torch.ones(1)), writer.close, writer.__enter__):
        with pytest.raises(ValueError, match="aborted"):
            attempt()
    in_order = InOrder()
    in_order.write = lambda data: 1 // 0
    with pytest.raises(ZeroDivisionError), Writer(in_order) as late:
        late["x"] = torch.ones(2)  # goes to a temporary file, which close() copies


def test_threads_share_it(path: str) -> None:
    with Writer(path, hashes="none") as writer, ThreadPoolExecutor(8) as pool:
        names = [f"x{number}" for number in range(200)]
        list(pool.map(lambda name: writer.add(name, torch.full((3,), int(name[1:]))), names))
        assert f"{len(names)} tensors, open" in repr(writer)
    with Reader(path) as reader, ThreadPoolExecutor(8) as pool:
        assert sorted(reader) == sorted(names)
        loaded = pool.map(reader.__getitem__, names)
        assert [tensor[0].item() for tensor in loaded] == list(range(200))


def test_arguments_are_not_options(path: str) -> None:
    for name in ("hashes", "threads", "expected_tensors", "expected_bytes"):
        with pytest.raises(errors.InvalidArgument, match=f"'{name}' is an argument"):
            Writer(path, options={name: "1"})
    with pytest.raises(errors.InvalidArgument, match="'md5'"):
        Writer(path, hashes="md5")
    with pytest.raises(TypeError, match="metadata"):
        Writer(path, metadata={"step": [7]})  # type: ignore[dict-item]
    assert os.listdir(os.path.dirname(path)) == []
    with Writer(path, hashes="sha256", options={"fsync": True}) as writer:
        writer["x"] = torch.ones(2)
    assert "crc32" not in Reader(path).stored("x")


def test_repr_shows_no_secret(tmp_path: Path) -> None:
    class Name(os.PathLike[str]):
        def __fspath__(self) -> str:
            return str(tmp_path / "x")

    assert repr(Writer(Name())).startswith(f"<tensorizer_ops.Writer to {str(tmp_path / 'x')!r}: 0")
    assert repr(Writer(io.BytesIO())) == "<tensorizer_ops.Writer to a BytesIO: 0 tensors, open>"


def test_scripts_use_the_torch_object(path: str) -> None:
    writer = Writer(path)
    writer.script_object.add("x", torch.ones(2))
    writer.close()
    assert list(tensorizer_ops.load(path)) == ["x"]


@pytest.mark.parametrize("kind", ["BytesIO", "file", "in order", "device"])
def test_it_writes_file_objects(path: str, kind: str) -> None:
    target: Any = {
        "BytesIO": io.BytesIO,
        "file": lambda: io.BufferedRandom(io.FileIO(path, "wb+")),
        "in order": InOrder,
        "device": lambda: io.FileIO("/dev/null", "wb"),
    }[kind]()
    with Writer(target, metadata={"step": "7"}) as writer:
        for name, tensor in zoo().items():
            writer[name] = tensor
    writer.close()  # does nothing
    if kind == "in order":
        data = bytes(target.data)
    elif kind == "device":
        target.close()
        return
    else:
        assert target.tell() == target.seek(0, os.SEEK_END)  # at the end of the file
        target.seek(0)
        data = target.read()
        target.close()
    with Reader(io.BytesIO(data), verify="all") as reader:
        assert_same(dict(reader), zoo())
        assert reader.metadata() == {"step": "7"}


def test_it_is_neither_copied_nor_pickled(path: str) -> None:
    with Writer(path) as writer:
        for take in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="a Writer cannot be copied or pickled"):
                take(writer)
