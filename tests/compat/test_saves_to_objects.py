"""TensorSerializer writes to any object that accepts bytes."""

from __future__ import annotations

import gc
import gzip
import io
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import tensorizer
import torch

import tensorizer_ops
from support.samples import assert_same, random_bytes, same, sample
from tensorizer_ops import TensorSerializer

TENSORS = {
    "a": sample(torch.float32),
    "b": sample(torch.bfloat16, (4, 5)),
    "large": random_bytes(9 << 20),
    "none": torch.empty(0, 3, dtype=torch.bfloat16),
}


class Writes(io.RawIOBase):
    """Accepts at most 100,003 bytes per write."""

    def __init__(self, seekable: bool) -> None:
        self.inner = io.BytesIO()
        self.can_seek = seekable
        self.data = b""

    def readable(self) -> bool:
        return self.can_seek

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.can_seek

    def write(self, buffer: Any) -> int:
        return self.inner.write(memoryview(buffer)[:100_003])

    def seek(self, offset: int, whence: int = 0) -> int:
        assert self.can_seek
        return self.inner.seek(offset, whence)

    def tell(self) -> int:
        return self.inner.tell()

    def close(self) -> None:
        if not self.closed:
            self.data = self.inner.getvalue()
        super().close()


class Memory(io.BytesIO):
    data = b""

    def close(self) -> None:
        self.data = self.data or self.getvalue()
        super().close()


@pytest.mark.parametrize("kind", ["memory", "raw", "without seek"])
def test_saves_to_objects(tmp_path: Path, kind: str) -> None:
    file: Any = Memory() if kind == "memory" else Writes(kind == "raw")
    with TensorSerializer(file) as serializer:
        serializer.write_state_dict({"a": TENSORS["a"], "large": TENSORS["large"]})
        serializer.write_state_dict({"b": TENSORS["b"], "none": TENSORS["none"]})
    assert file.closed
    (tmp_path / "saved").write_bytes(file.data)
    with tensorizer.TensorDeserializer(
        str(tmp_path / "saved"), device="cpu", verify_hash=True
    ) as loaded:
        for name in ("b", "large", "a"):
            assert same(loaded[name], TENSORS[name]), name


def drained(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()


@pytest.mark.parametrize(
    "mode", ["wb", "wb+", "rb+", "gzip", "descriptor", "pipe", "named pipe", "temporary"]
)
def test_saves_to_files(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "saved"
    path.write_bytes(b"")
    received: list[bytes] = []
    thread = None
    if mode == "gzip":
        file: Any = gzip.open(path, "wb", compresslevel=1)  # noqa: SIM115
    elif mode == "descriptor":
        file = os.open(path, os.O_RDWR)
    elif mode == "pipe":
        read, write = os.pipe()
        thread = threading.Thread(target=lambda: received.append(drained(read)))
        thread.start()
        file = open(write, "wb", buffering=0)  # noqa: SIM115
    elif mode == "named pipe":
        file = tmp_path / "pipe"
        os.mkfifo(file)
        thread = threading.Thread(target=lambda: received.append(file.read_bytes()))
        thread.start()
    elif mode == "temporary":
        file = tempfile.NamedTemporaryFile(dir=tmp_path, delete=False)  # noqa: SIM115
        path = Path(file.name)
    else:
        file = path.open(mode)
    with TensorSerializer(file) as serializer:
        serializer.write_state_dict(TENSORS)
    if thread is not None:
        thread.join()
        path.write_bytes(received[0])
    if mode == "gzip":
        path.write_bytes(gzip.decompress(path.read_bytes()))
    assert_same(tensorizer_ops.load(path, verify="all"), TENSORS)


@pytest.mark.parametrize("package", [tensorizer, tensorizer_ops])
@pytest.mark.parametrize("opened", [True, False])
def test_a_device_that_keeps_nothing(package: Any, opened: bool) -> None:
    serializer = package.TensorSerializer(open(os.devnull, "wb+") if opened else os.devnull)  # noqa: SIM115
    serializer.write_state_dict(TENSORS)
    assert serializer.total_tensor_bytes == sum(tensor.nbytes for tensor in TENSORS.values())
    serializer.close()


@pytest.mark.parametrize("package", [tensorizer, tensorizer_ops])
@pytest.mark.parametrize("kind", ["memory", "file", "object"])
def test_an_object_holds_a_file_after_each_call(tmp_path: Path, kind: str, package: Any) -> None:
    file: Any = io.BytesIO()
    if kind == "file":
        file = (tmp_path / "x").open("wb+")
    elif kind == "object":
        file = Writes(seekable=True)
    file.write(b"before")
    file.flush()
    serializer = package.TensorSerializer(file)
    expected = {}
    # The last calls need a longer index than was reserved.
    for call, count in enumerate([2, 1, 0, 3] if kind == "object" else [2, 1, 0, 1500, 2]):
        tensors = {f"{call}.{i}": torch.full((i % 7,), i, dtype=torch.int16) for i in range(count)}
        expected |= tensors
        serializer.write_state_dict(tensors)
        if kind == "file":
            data = (tmp_path / "x").read_bytes()
        else:
            data = (file.inner if kind == "object" else file).getvalue()
        assert data[:6] == b"before"
        for reader in (tensorizer, tensorizer_ops):
            copy = io.BytesIO(data)
            copy.seek(6)
            assert_same(dict(reader.TensorDeserializer(copy, device="cpu")), expected)
    serializer.close()


@pytest.mark.parametrize("seekable", [True, False])
def test_an_object_that_somebody_closed(seekable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", failures.append)
    with Writes(seekable) as file:
        serializer = TensorSerializer(file)
        serializer.write_state_dict({"a": TENSORS["a"]})
    with pytest.warns(ResourceWarning, match="aborted"):
        del serializer
        gc.collect()
    assert not failures


def test_an_object_that_cannot_be_written(tmp_path: Path) -> None:
    class Full(Writes):
        def write(self, buffer: Any) -> int:
            raise OSError(28, "no room")

    for seekable in (True, False):
        with (
            pytest.raises(OSError, match="no room"),
            TensorSerializer(Full(seekable)) as serializer,
        ):
            serializer.write_state_dict(TENSORS)
