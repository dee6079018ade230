"""A small file of three tensors, in which one field at a time is made wrong."""

from __future__ import annotations

from typing import Any

import torch

from support.raw_format import Block

FLOATS = bytes(range(200, 224))
SHORTS = bytes(range(8))


def blocks(**of_b: Any) -> list[Block]:
    """Returns three tensors. `of_b` overrides fields of the middle one, `b`."""
    b = {"name": "b", "dtype": "<i2", "shape": (4,), "data": SHORTS} | of_b
    return [
        Block("a", "<f4", (2, 3), FLOATS),
        Block(**b),
        Block("c", "|u1", (5,), b"hello"),
    ]


def from_bytes(data: bytes | bytearray) -> Any:
    """Opens a reader of a file given as bytes."""
    return torch.ops.tensorizer.open(torch.frombuffer(bytearray(data), dtype=torch.uint8))


def load_all(reader: Any, verify: str = "none") -> dict[str, torch.Tensor]:
    return dict(reader.load(None, None, None, verify, False, 0))
