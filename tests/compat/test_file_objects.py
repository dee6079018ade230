"""file_obj: every kind of object that holds bytes."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import socket
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from local_servers.s3_server import s3_server
from local_servers.web import nginx
from support.file_objects import TENSORS, OnlyRead, Reads, check, written_by
from support.process import fork_python
from tensorizer_ops import TensorDeserializer, TensorSerializer


@pytest.fixture(params=["ours", "theirs"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    return written_by(request.param, tmp_path / "data")


def as_file(data: bytes, folder: Path, kind: str) -> Any:
    path = folder / "object"
    path.write_bytes(data)
    if kind == "buffered":
        return path.open("rb")
    if kind == "unbuffered":
        return path.open("rb", buffering=0)
    if kind == "for both":
        return path.open("rb+")
    if kind == "memory":
        return io.BytesIO(data)
    if kind == "gzip":
        with gzip.open(path, "wb", compresslevel=0) as file:
            file.write(data)
        return gzip.open(path, "rb")
    if kind == "temporary":
        file = tempfile.NamedTemporaryFile(dir=folder)  # noqa: SIM115
        file.write(data)
        file.seek(0)
        return file
    if kind == "spooled":
        spooled = tempfile.SpooledTemporaryFile(max_size=100)  # noqa: SIM115
        spooled.write(data)
        spooled.seek(0)
        return spooled
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("entry", data)
        return zipfile.ZipFile(path).open("entry")
    if kind == "read":
        return OnlyRead(data)
    if kind == "descriptor":
        return os.open(path, os.O_RDONLY)
    return {"raw": Reads(data), "raw without seek": Reads(data, seekable=False)}[kind]


KINDS = [
    *("buffered", "unbuffered", "for both", "memory", "gzip", "temporary", "spooled", "zip"),
    *("read", "descriptor", "raw", "raw without seek"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_eager_loads_from_anything(data: bytes, tmp_path: Path, kind: str) -> None:
    file = as_file(data, tmp_path, kind)
    ours = TensorDeserializer(file, "cpu", verify_hash=True)
    check(ours)
    assert kind == "descriptor" or file.closed


@pytest.mark.parametrize("kind", KINDS)
def test_lazy_loads_from_what_can_seek(data: bytes, tmp_path: Path, kind: str) -> None:
    file = as_file(data, tmp_path, kind)
    if kind in ("read", "raw without seek"):
        with pytest.raises(ValueError, match="seek"):
            TensorDeserializer(file, "cpu", lazy_load=True)
    else:
        with TensorDeserializer(file, "cpu", lazy_load=True) as ours:
            check(ours)
            assert [name for _, _, name, _ in ours.read_tensors()][:3] == ["a", "b", "large"]
    assert kind == "descriptor" or file.closed


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("kind", ["buffered", "unbuffered", "memory", "raw", "gzip"])
def test_files_that_start_behind_something_else(tmp_path: Path, kind: str, lazy: bool) -> None:
    path = tmp_path / "behind"
    with path.open("wb+") as both:
        both.write(b"x" * 5000)
        serializer = TensorSerializer(both)
        serializer.write_state_dict(TENSORS)
        serializer.close()
        assert both.closed
    data = path.read_bytes()
    assert data.startswith(b"x" * 5000 + b"|TZR|")
    file = as_file(data, tmp_path, kind)
    assert file.read(5000) == b"x" * 5000
    with TensorDeserializer(file, "cpu", lazy_load=lazy, verify_hash=True) as ours:
        check(ours)


def test_a_buffer_is_not_copied(data: bytes) -> None:
    file = io.BytesIO(data)
    with TensorDeserializer(file, "cpu", lazy_load=True) as lazy:
        check(lazy)
        assert file.getvalue() is data
        file.write(b"x" * 100)  # does not affect the deserializer
        assert [name for name in lazy if name != "none"] == ["a", "b", "large"]
    assert file.closed


@contextlib.contextmanager
def sent(data: bytes) -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=lambda: (theirs.sendall(data), theirs.close()))
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join()


def test_sockets_and_pipes(data: bytes) -> None:
    with sent(data) as ours:
        check(TensorDeserializer(ours.makefile("rb"), "cpu", verify_hash=True))
    with sent(data) as ours:
        check(TensorDeserializer(os.dup(ours.fileno()), "cpu"))
    read, write = os.pipe()

    def feed() -> None:
        with open(write, "wb") as file:
            file.write(data)

    for buffering in (0, -1):
        if buffering:
            read, write = os.pipe()
        thread = threading.Thread(target=feed)
        thread.start()
        file = open(read, "rb", buffering=buffering)  # noqa: SIM115
        check(TensorDeserializer(file, "cpu"))
        assert file.closed
        thread.join()


def test_more_readers_need_what_can_be_opened_again(data: bytes, tmp_path: Path) -> None:
    for kind in ("memory", "gzip", "raw", "read"):
        file = as_file(data, tmp_path, kind)
        with pytest.raises(ValueError, match="num_readers"):
            TensorDeserializer(file, "cpu", num_readers=2)
        assert file.closed
        check(TensorDeserializer(as_file(data, tmp_path, kind), "cpu", num_readers=1))
    for kind in ("buffered", "unbuffered", "for both"):
        check(TensorDeserializer(as_file(data, tmp_path, kind), "cpu", num_readers=2))


def test_what_is_no_binary_file(path: str) -> None:
    Path(path).write_bytes(b"")
    for mode, cls in (
        ("r", TensorDeserializer),
        ("wb", TensorDeserializer),
        ("w", TensorSerializer),
    ):
        with open(path, mode) as file, pytest.raises(ValueError):
            cls(file)
    with open(path, "rb") as file, pytest.raises(ValueError, match="writable"):
        TensorSerializer(file)
    with open(path, "ab+") as file, pytest.raises(ValueError, match="append"):
        TensorSerializer(file)
    for wrong in (None, 1.5, [path], object()):
        for cls in (TensorDeserializer, TensorSerializer):
            with pytest.raises(TypeError, match="file_obj"):
                cls(wrong)


MEMORY = """
import io, resource, sys
import torch, tensorizer_ops

class Slow(io.RawIOBase):
    def __init__(self, path):
        self.file = open(path, "rb", buffering=0)
    def readable(self):
        return True
    def readinto(self, buffer):
        return self.file.readinto(buffer)

tensorizer_ops.save(sys.argv[1], {"warm": torch.ones(1 << 20)})
tensorizer_ops.TensorDeserializer(Slow(sys.argv[1]), "cpu")
size = 256 << 20
tensorizer_ops.save(sys.argv[1], {f"{i}": torch.zeros(size // 16, dtype=torch.int8)
                                  for i in range(16)})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
loaded = tensorizer_ops.TensorDeserializer(Slow(sys.argv[1]), "cpu", verify_hash=True)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024 - size)
"""


def test_a_load_takes_no_memory_for_the_file(path: str) -> None:
    assert int(fork_python(MEMORY, path).stdout) < 64 << 20


INTERRUPTED = """
import io, os, signal, sys, time
import tensorizer_ops

signal.signal(signal.SIGINT, signal.default_int_handler)

class Stalls(io.RawIOBase):
    def __init__(self, data):
        self.inner = io.BytesIO(data)
    def readable(self):
        return True
    def readinto(self, buffer):
        got = self.inner.readinto(buffer)
        if not got:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(600)
        return got

data = open(sys.argv[1], "rb").read()
try:
    tensorizer_ops.TensorDeserializer(Stalls(data[:-5000]), "cpu", verify_hash=True)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_object_that_stalls_is_interrupted(path: str) -> None:
    tensorizer_ops.save(path, TENSORS)
    assert fork_python(INTERRUPTED, path).stdout == "interrupted\n"


def test_a_web_server(tmp_path: Path) -> None:
    with nginx(tmp_path) as web:
        tensorizer_ops.save(web.root / "m.tensors", TENSORS)
        for lazy in (True, False):
            with TensorDeserializer(web.url("m.tensors"), "cpu", lazy_load=lazy) as ours:
                check(ours)
        with pytest.raises(OSError):
            TensorDeserializer(web.url("nowhere"), "cpu")


def test_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(tmp_path) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        uri = "s3://bucket/m.tensors"
        with TensorSerializer(uri) as serializer:
            serializer.write_state_dict(TENSORS)
        for lazy in (True, False):
            with TensorDeserializer(uri, "cpu", lazy_load=lazy, verify_hash=True) as ours:
                check(ours)
        with pytest.raises(ZeroDivisionError), TensorSerializer(uri) as serializer:
            serializer.write_state_dict({"new": torch.ones(1)})
            raise ZeroDivisionError
        check(TensorDeserializer(uri, "cpu", num_readers=2))
        for scheme in ("http", "redis"):
            with pytest.raises(ValueError):
                TensorSerializer(f"{scheme}://localhost/m.tensors")
