"""File objects that misuse the memory they are lent, or that return invalid data."""

from __future__ import annotations

import array
import contextlib
import gc
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import tensorizer_ops
from support.file_objects import TENSORS, OnlyRead, Reads, check, written_by
from tensorizer_ops import TensorDeserializer, TensorSerializer


@pytest.fixture(params=["ours", "theirs"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    return written_by(request.param, tmp_path / "data")


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
        (lambda _: True, TypeError),
        (fail, ZeroDivisionError),
    ],
)
def test_objects_that_do_as_they_like(
    data: bytes, answer: Callable[[Any], Any], error: type[Exception], lazy: bool
) -> None:
    file = Broken(data, answer)
    with pytest.raises(error):
        check(TensorDeserializer(file, "cpu", lazy_load=lazy))


@pytest.mark.parametrize("spooled", [True, False])
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda _: 0, OSError),
        (lambda _: None, (OSError, ValueError)),
        (lambda _: -1, ValueError),
        (lambda data: len(data) + 1, (OSError, ValueError)),
        (lambda _: "text", TypeError),
        (lambda _: 1.0, TypeError),
        (lambda _: True, TypeError),
    ],
)
def test_writes_that_return_what_they_like(
    answer: Callable[[Any], Any], error: type[Exception], spooled: bool
) -> None:
    class Wrong(io.BytesIO):
        def write(self, data: Any) -> Any:
            super().write(data)
            return answer(data)

        def seekable(self) -> bool:
            return not spooled  # a temporary file is written first, and copied to what cannot seek

    for save in (
        lambda file: tensorizer_ops.save(file, TENSORS),
        lambda file: tensorizer_ops.save(file, TENSORS, options={"format": "safetensors"}),
        file_is_whole,
    ):
        with pytest.raises(error):
            save(Wrong())


@pytest.mark.parametrize(
    ("position", "error"),
    [(-1, ValueError), (1 << 63, ValueError), (None, TypeError), (True, TypeError)],
)
def test_positions_that_are_none(data: bytes, position: object, error: type[Exception]) -> None:
    class Lost(io.BytesIO):
        def tell(self) -> Any:
            return position

    for use in (tensorizer_ops.load, lambda file: tensorizer_ops.save(file, TENSORS)):
        with pytest.raises(error, match=r"tell\(\)"):
            use(Lost(data))


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


# Ways to keep a method's buffer beyond the call.
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
    for _ in range(50):  # so that freed memory with other content is reused
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


# A BytesIO with a method of its own is not treated as a plain BytesIO.
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

    with pytest.raises(TypeError, match=r"Gives\): read\(\) returned a .*C-contiguous") as error:
        TensorDeserializer(Gives(b""), "cpu")
    assert "\\x" not in str(error.value)


@pytest.mark.parametrize("form", [bytearray, memoryview, lambda data: array.array("B", data)])
def test_what_read_may_give(data: bytes, form: Callable[[bytes], Any]) -> None:
    class Gives(OnlyRead):
        def read(self, count: int = -1) -> Any:
            return form(super().read(count))

    check(TensorDeserializer(Gives(data), "cpu"))
