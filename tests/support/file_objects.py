"""A file of tensors written by either library, and Python file objects that read it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import tensorizer
import torch

import tensorizer_ops
from support.samples import random_bytes, same, sample

TENSORS = {
    "a": sample(torch.float32),
    "b": sample(torch.bfloat16, (4, 5)),
    "large": random_bytes(9 << 20),
    "none": torch.empty(0, 3, dtype=torch.bfloat16),
}


def written_by(writer: str, path: Path) -> bytes:
    """Returns the bytes of a file written by `writer`: "ours", or "theirs" for tensorizer."""
    module: Any = {"ours": tensorizer_ops, "theirs": tensorizer}[writer]
    serializer = module.TensorSerializer(str(path))
    # tensorizer cannot open a file with an empty tensor of an opaque dtype.
    serializer.write_state_dict(
        {name: tensor for name, tensor in TENSORS.items() if writer == "ours" or name != "none"}
    )
    serializer.close()
    return path.read_bytes()


def check(loaded: Any) -> None:
    for name in ("b", "large", "a"):
        assert same(loaded[name], TENSORS[name]), name


class Reads(io.RawIOBase):
    """Returns at most 100,003 bytes at a time, and records the largest read that was asked for."""

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
    """The minimal file object: only `read` and `close`."""

    def __init__(self, data: bytes) -> None:
        self.inner = io.BytesIO(data)
        self.closed = False

    def read(self, count: int = -1) -> bytes:
        return self.inner.read(min(count, 70_001))

    def close(self) -> None:
        self.closed = True


class InOrder(io.RawIOBase):
    """Takes at most 1000 bytes at a time, and cannot seek."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += memoryview(data)[:1000]
        return min(len(data), 1000)
