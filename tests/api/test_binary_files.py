"""load, save and the others take binary file objects wherever they take a path."""

from __future__ import annotations

import gzip
import io
import os
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from local_servers.web import nginx
from support.file_objects import InOrder, OnlyRead, Reads
from support.process import fork_python
from support.samples import assert_same, same, zoo
from tensorizer_ops import errors

fsspec: Any = pytest.importorskip("fsspec")  # torch requires it


@pytest.fixture
def data(path: str) -> bytes:
    tensorizer_ops.save(path, zoo(), metadata={"step": "7"})
    return Path(path).read_bytes()


def readers(data: bytes) -> list[Any]:
    """Returns objects of each kind whose bytes are `data`, and one that has more in front."""
    behind = io.BytesIO(b"other")
    behind.seek(5)
    tensorizer_ops.save(behind, zoo(), metadata={"step": "7"})  # its offsets count from 0
    behind.seek(5)
    memory = fsspec.filesystem("memory").open("/data", "wb")
    memory.write(data)
    memory.close()
    return [
        io.BytesIO(data),
        behind,
        Reads(data),
        Reads(data, seekable=False),
        OnlyRead(data),
        fsspec.filesystem("memory").open("/data", "rb"),
        gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(data, 1))),
        bytearray(data),
        memoryview(data),
    ]


def test_loads_read_each_kind(data: bytes) -> None:
    for source in readers(data):
        assert_same(tensorizer_ops.load(source, verify="all"), zoo())
    for source in readers(data):
        part = tensorizer_ops.load(source, names=["float32", "int8"], slices={"float32": 1})
        assert_same(part, {"float32": zoo()["float32"][1], "int8": zoo()["int8"]})
    calls: list[tuple[int, int]] = []
    tensorizer_ops.load(io.BytesIO(data), progress=lambda *numbers: calls.append(numbers))
    assert calls[-1][0] == calls[-1][1] > 0


def test_the_other_functions_read_each_kind(data: bytes, path: str) -> None:
    digest = tensorizer_ops.digest(path)
    for number, source in enumerate(readers(data)):
        match number % 4:
            case 0:
                assert tensorizer_ops.names(source) == list(zoo())
            case 1:
                assert tensorizer_ops.metadata(source) == {"step": "7"}
            case 2:
                tensorizer_ops.verify(source)
            case 3:
                assert tensorizer_ops.digest(source) == digest
    out = {"int8": torch.zeros_like(zoo()["int8"])}
    tensorizer_ops.load_into(out, io.BytesIO(data), strict=False)
    assert same(out["int8"], zoo()["int8"])


def test_files_of_python_are_read_from_their_position(path: str) -> None:
    with open(path, "wb") as file:
        file.write(b"other")
        tensorizer_ops.save(file, zoo())
    with open(path, "rb") as file:
        assert file.read(5) == b"other"
        assert_same(tensorizer_ops.load(file, verify="all"), zoo())
        assert file.tell() == 5
        assert_same(tensorizer_ops.load(file), zoo())


@pytest.mark.parametrize("form", ["tensors", "safetensors"])
def test_a_save_writes_the_bytes_of_a_file(path: str, form: str) -> None:
    tensors = {"x": torch.ones(3, 4), "n": torch.arange(5)}
    how: Any = {"options": {"format": form}, "metadata": {"step": "7"}}
    tensorizer_ops.save(path, tensors, **how)
    expected = Path(path).read_bytes()
    memory = fsspec.filesystem("memory").open("/saved", "w+b")
    in_order = InOrder()
    with tempfile.TemporaryFile() as file, open(path + ".2", "wb") as other:
        for target in (io.BytesIO(), memory, in_order, file, other):
            tensorizer_ops.save(target, tensors, **how)
            if isinstance(target, InOrder):
                assert bytes(target.data) == expected
                continue
            assert target.tell() == len(expected)
            target.write(b"behind")
            target.flush()
            if target is other:
                assert Path(path + ".2").read_bytes() == expected + b"behind"
            else:
                target.seek(0)
                assert target.read() == expected + b"behind"


@pytest.mark.parametrize("by", ["save", "Writer"])
def test_the_buffer_of_a_file_knows_its_position(by: str) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(100_000))
        file.seek(0)
        if by == "save":
            tensorizer_ops.save(file, {"x": torch.ones(1)})
        else:
            with tensorizer_ops.Writer(file) as writer:
                writer["x"] = torch.ones(1)
        assert file.read(1) == b"\0"  # and what follows into the buffer
        file.seek(1)
        assert file.read(4) == b"TZR|"


def test_a_save_starts_at_the_position() -> None:
    target = io.BytesIO(b"other")
    target.seek(5)
    calls: list[tuple[int, int]] = []
    tensors = {"x": torch.ones(1000)}
    tensorizer_ops.save(target, tensors, progress=lambda *numbers: calls.append(numbers))
    assert calls[-1] == (4000, 4000)
    target.seek(0)
    assert target.read(5) == b"other"
    assert_same(tensorizer_ops.load(target), tensors)


def test_a_pipe_takes_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", None)  # is written as it goes
    source, target = os.pipe()
    loaded: list[dict[str, torch.Tensor]] = []
    with open(source, "rb", buffering=0) as out, open(target, "wb") as into:
        thread = threading.Thread(target=lambda: loaded.append(tensorizer_ops.load(out)))
        thread.start()
        try:
            tensorizer_ops.save(into, zoo())
        finally:
            into.close()
            thread.join()
    assert_same(loaded[0], zoo())


def test_errors_of_the_object_reach_the_caller(data: bytes) -> None:
    class Breaks(Reads):
        def readinto(self, buffer: Any) -> int:
            raise ZeroDivisionError

    class Full(InOrder):
        def write(self, data: Any) -> int:
            raise OSError("full")

    for attempt in (tensorizer_ops.load, tensorizer_ops.names, tensorizer_ops.verify):
        with pytest.raises(ZeroDivisionError):
            attempt(Breaks(data))
    with pytest.raises(OSError, match="full"):
        tensorizer_ops.save(Full(), zoo())
    with pytest.raises(errors.InvalidFormat):
        tensorizer_ops.load(io.BytesIO(data[:500]))
    with pytest.raises(errors.InvalidFormat):
        tensorizer_ops.load(io.BytesIO())


BLOCKED = """
import io, os, signal, threading, time
import torch
import tensorizer_ops

class Blocks(io.BytesIO):
    def write(self, data):
        self.block()

    def readinto(self, buffer):
        if self.tell() > 1 << 20:
            self.block()
        return super().readinto(buffer)

    def block(self):
        started.append(time.monotonic())
        time.sleep(60)

def interrupt():
    while not started:
        time.sleep(0.01)
    time.sleep(0.1)
    started.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

tensors = {"x": torch.ones(1 << 22), "y": torch.ones(1 << 22)}
file = io.BytesIO()
tensorizer_ops.save(file, tensors, hashes="none")

def write():
    with tensorizer_ops.Writer(Blocks()) as writer:
        writer["x"] = tensors["x"]

for job in (
    write,
    lambda: tensorizer_ops.save(Blocks(), tensors),
    lambda: tensorizer_ops.load(Blocks(file.getvalue())),
    lambda: tensorizer_ops.Reader(Blocks(file.getvalue())).load(),
):
    started = []
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        job()
    except KeyboardInterrupt:
        waited = time.monotonic() - started[-1]
    thread.join()
    assert waited < 2, waited
"""


def test_ctrl_c_ends_a_blocked_method() -> None:
    fork_python(BLOCKED)


def test_a_body_of_a_response_is_loaded(tmp_path: Path) -> None:
    with nginx(tmp_path) as web:
        tensorizer_ops.save(str(web.root / "zoo.tensors"), zoo())
        with urllib.request.urlopen(web.url("zoo.tensors")) as response:
            assert_same(tensorizer_ops.load(response, verify="all"), zoo())
        with urllib.request.urlopen(web.url("zoo.tensors")) as response:
            reader = tensorizer_ops.Reader(response)
            assert list(reader) == list(zoo())
            assert_same(dict(reader), zoo())
            with pytest.raises(ValueError, match="read only once"):
                reader["bool"]


def test_other_objects_are_refused(path: str) -> None:
    other: Any
    for other in (7, None, object(), {"x": torch.ones(1)}):
        kind = "None" if other is None else type(other).__name__
        words = f"^uri is {kind}, and must be .* file object"
        with pytest.raises(TypeError, match=words):
            tensorizer_ops.load(other)
        with pytest.raises(TypeError, match=words):
            tensorizer_ops.save(other, {})
    with pytest.raises(TypeError, match=r"uri is OpenFile, .*: give what its open\(\) returns"):
        tensorizer_ops.load(fsspec.open(path))
    other = io.StringIO("")
    for attempt in (lambda: tensorizer_ops.load(other), lambda: tensorizer_ops.save(other, {})):
        with pytest.raises(ValueError, match="binary"):
            attempt()
    with pytest.raises(errors.InvalidArgument, match=r"300 bytes .*: .* give io\.BytesIO\(\)"):
        tensorizer_ops.load(b"|TZR|" + bytes(295))
    with open(path, "wb") as target, pytest.raises(ValueError, match="'wb'"):
        tensorizer_ops.load(target)
    with pytest.raises(errors.InvalidArgument, match="max_shard_size"):
        tensorizer_ops.save(io.BytesIO(), {}, options={"max_shard_size": 1 << 20})


def test_a_file_object_is_not_taken_for_its_path(path: str, data: bytes) -> None:
    class OnServer(io.BytesIO):
        """As the files of fsspec on SMB servers, whose path is on the server."""

        def __fspath__(self) -> str:
            return "/nowhere"

    assert_same(tensorizer_ops.load(OnServer(data)), zoo())
    os.unlink(path)
    # A file of fsspec may get its name later.
    file = fsspec.filesystem("file").open(path, "wb", autocommit=False)
    tensorizer_ops.save(file, zoo())
    file.close()
    assert not os.path.exists(path)
    file.commit()
    with fsspec.filesystem("file").open(path, "rb") as back:
        assert_same(tensorizer_ops.load(back, verify="all"), zoo())


@pytest.mark.parametrize("form", ["tensors", "safetensors"])
def test_a_shorter_file_replaces_all_of_a_buffer(form: str) -> None:
    buffer = io.BytesIO(b"x" * 100_000)
    tensorizer_ops.save(buffer, {"a": torch.ones(3)}, options={"format": form})
    assert buffer.tell() == len(buffer.getvalue())
    buffer.seek(0)
    assert torch.equal(tensorizer_ops.load(buffer)["a"], torch.ones(3))
