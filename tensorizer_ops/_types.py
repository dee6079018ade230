"""The small types of the format, as ``tensorizer`` names them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch

# What stands in for elements of a size where their own type is not known.
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class TensorType(IntEnum):
    """What a tensor was where it was saved."""

    PARAM = 0
    BUFFER = 1
    STATE_DICT = 2


class HashType(IntEnum):
    CRC32 = 0
    SHA256 = 1


@dataclass(order=True, slots=True)
class TensorHash:
    type: HashType
    hash: bytes


@dataclass(order=True, slots=True)
class TensorEntry:
    """What an index and a header say of one tensor."""

    metadata_version: int
    name: tuple[str | int, ...]
    type: TensorType
    dtype: str
    shape: tuple[int, ...]
    offset: int
    data_offset: int
    data_length: int
    hashes: list[TensorHash] | None
    header_hashes: dict[HashType, Any] | None
