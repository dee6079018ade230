"""What can be a file_obj: everything that holds bytes."""

from __future__ import annotations

import array
import contextlib
import gc
import gzip
import io
import os
import socket
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import tensorizer
import torch

import tensorizer_ops
from local_servers.s3_server import s3_server
from local_servers.web import nginx
from support.process import run_python
from support.samples import random_bytes, same, sample
from tensorizer_ops import TensorDeserializer, TensorSerializer

TENSORS = {
    "a": sample(torch.float32),
    "b": sample(torch.bfloat16, (4, 5)),
    "large": random_bytes(9 << 20),
    "none": torch.empty(0, 3, dtype=torch.bfloat16),
}


@pytest.fixture(params=["ours", "theirs"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    """The bytes of a file, by either writer."""
    ours = request.param == "ours"
    serializer: Any = (tensorizer_ops if ours else tensorizer).TensorSerializer(
        str(tmp_path / "data")
    )
    # There, nobody opens a file with an empty tensor of such a type.
    serializer.write_state_dict({k: v for k, v in TENSORS.items() if ours or k != "none"})
    serializer.close()
    return (tmp_path / "data").read_bytes()


class Reads(io.RawIOBase):
    """Gives a few bytes at a time, and remembers how many at once somebody wanted."""

    def __init__(self, data: bytes, seekable: bool = True) -> None:
        self.inner = io.BytesIO(data)
        self.can_seek = seekable
        self.most = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.can_seek

    def readinto(self, buffer: Any) -> int:
        self.most = max(self.most, len(buffer))
        return self.inner.readinto(memoryview(buffer)[:100_003])

    def seek(self, offset: int, whence: int = 0) -> int:
        assert self.can_seek
        return self.inner.seek(offset, whence)

    def tell(self) -> int:
        return self.inner.tell()


class OnlyRead:
    """The least that a file object can be."""

    def __init__(self, data: bytes) -> None:
        self.inner = io.BytesIO(data)
        self.closed = False

    def read(self, count: int = -1) -> bytes:
        return self.inner.read(min(count, 70_001))

    def close(self) -> None:
        self.closed = True


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


def check(ours: Any) -> None:
    for name in ("b", "large", "a"):
        assert same(ours[name], TENSORS[name]), name


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
        file.write(b"x" * 100)  # changes nothing for those who read
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


class Broken(Reads):
    def __init__(self, data: bytes, answer: Any) -> None:
        super().__init__(data)
        self.answer = answer

    def readinto(self, buffer: Any) -> Any:
        if self.inner.tell() < 300_000:
            return super().readinto(buffer)
        return self.answer(buffer)


def fail(_: Any) -> None:
    raise ZeroDivisionError("the object's own")


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda _: 0, ValueError),
        (lambda _: None, ValueError),
        (lambda _: -1, ValueError),
        (lambda buffer: len(buffer) + 1, ValueError),
        (lambda _: "text", TypeError),
        (fail, ZeroDivisionError),
    ],
)
def test_objects_that_do_as_they_like(
    data: bytes, answer: Callable[[Any], Any], error: type[Exception], lazy: bool
) -> None:
    file = Broken(data, answer)
    with pytest.raises(error):
        check(TensorDeserializer(file, "cpu", lazy_load=lazy))


def test_an_object_cannot_use_its_buffer_later(data: bytes) -> None:
    kept: list[memoryview] = []

    class Keeps(Reads):
        def readinto(self, buffer: Any) -> int:
            kept.append(buffer)
            return super().readinto(buffer)

    check(TensorDeserializer(Keeps(data), "cpu"))
    for buffer in kept:
        with pytest.raises(ValueError, match="released"):
            buffer[0]


# Ways to keep what a method was given, all of which outlive it.
KEEPS: list[Callable[[Any], Any]] = [
    memoryview,
    lambda buffer: buffer[1:],
    lambda buffer: buffer.cast("B").toreadonly(),
    lambda buffer: numpy.frombuffer(buffer, numpy.uint8),
    lambda buffer: numpy.asarray(memoryview(buffer)[::-1]),
    lambda buffer: torch.frombuffer(memoryview(buffer), dtype=torch.uint8),
]


def contents(kept: Any) -> bytes:
    return bytes(kept.numpy()) if isinstance(kept, torch.Tensor) else bytes(kept)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("keep", range(len(KEEPS)))
def test_views_that_an_object_keeps_have_their_memory(data: bytes, keep: int) -> None:
    kept: list[tuple[Any, bytes]] = []

    class Keeps(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            count = super().readinto(buffer)
            kept.append((KEEPS[keep](buffer), contents(KEEPS[keep](buffer))))
            return count

        def write(self, buffer: Any) -> int:
            kept.append((KEEPS[keep](buffer), contents(KEEPS[keep](buffer))))
            return super().write(buffer)

    check(TensorDeserializer(Keeps(data), "cpu", verify_hash=True))
    file = Keeps()
    file_is_whole(file)
    gc.collect()
    assert sum(len(content) for _, content in kept) > 2 * TENSORS["large"].nbytes
    for view, content in kept:
        assert contents(view) == content


def file_is_whole(file: io.BytesIO) -> None:
    serializer = TensorSerializer(file)
    serializer.write_state_dict(TENSORS)
    written = file.getvalue()
    serializer.close()
    check(TensorDeserializer(io.BytesIO(written), "cpu", verify_hash=True))


def test_an_object_changes_nothing_by_a_view_that_it_keeps(data: bytes) -> None:
    class Scribbles(io.BytesIO):
        kept: Any = None

        def readinto(self, buffer: Any) -> int:
            if self.kept is not None:
                self.kept[:] = bytes(len(self.kept))
            self.kept = memoryview(buffer)
            return super().readinto(buffer)

    check(TensorDeserializer(Scribbles(data), "cpu", verify_hash=True))


def test_an_object_that_claims_more_than_it_gave_shows_no_memory() -> None:
    class Claims(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            seen.append(bytes(buffer))
            return len(buffer)

    seen: list[bytes] = []
    for _ in range(50):  # so that what is taken next was something else
        bytearray(b"password" * 5000)
        with pytest.raises(tensorizer_ops.errors.InvalidFormat) as error:
            tensorizer_ops.TensorDeserializer(Claims(), device="cpu")
        assert "password" not in str(error.value)
    assert not any(map(any, seen))


def test_an_object_that_resizes_what_it_was_lent(data: bytes) -> None:
    class Resizes(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            count = super().readinto(buffer)
            memory = buffer.obj
            buffer.release()
            with contextlib.suppress(BufferError):
                memory.clear()
            return count

    check(TensorDeserializer(Resizes(data), "cpu", verify_hash=True))


# Methods of its own make it another kind of object.
def test_a_buffer_with_a_method_of_its_own(data: bytes) -> None:
    kept = []
    file = io.BytesIO()

    def write(buffer: Any) -> int:
        kept.append(memoryview(buffer))
        return io.BytesIO.write(file, buffer)

    file.write = write
    file_is_whole(file)
    assert sum(map(len, kept)) > TENSORS["large"].nbytes
    assert all(bytes(view) for view in kept)


@pytest.mark.parametrize(
    "form",
    [
        lambda data: memoryview(data)[::-1],
        lambda data: numpy.frombuffer(data, numpy.uint8)[::-1],
        lambda data: numpy.broadcast_to(numpy.uint8(7), len(data)),
        lambda data: numpy.frombuffer(data * 2, numpy.uint8)[::2],
        lambda data: numpy.asfortranarray(numpy.ones((2, len(data) // 2), numpy.uint8)),
        lambda data: "x" * len(data),
        lambda data: 7,
    ],
    ids=["reversed view", "reversed", "broadcast", "stepped", "Fortran", "text", "number"],
)
def test_what_read_gives_must_be_bytes_in_a_row(form: Callable[[bytes], Any]) -> None:
    class Gives(OnlyRead):
        def read(self, count: int = -1) -> Any:
            return form(b"\x01" * min(count, 70_000))

    with pytest.raises(TypeError, match=r"Gives\): read\(\) gave a .*C-contiguous") as error:
        TensorDeserializer(Gives(b""), "cpu")
    assert "\\x" not in str(error.value)


@pytest.mark.parametrize("form", [bytearray, memoryview, lambda data: array.array("B", data)])
def test_what_read_may_give(data: bytes, form: Callable[[bytes], Any]) -> None:
    class Gives(OnlyRead):
        def read(self, count: int = -1) -> Any:
            return form(super().read(count))

    check(TensorDeserializer(Gives(data), "cpu"))


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
    assert int(run_python(MEMORY, path).stdout) < 64 << 20


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
    assert run_python(INTERRUPTED, path).stdout == b"interrupted\n"


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
