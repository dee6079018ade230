"""The small types of the format, as ``tensorizer`` names them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

# The version of the format that knows dimensions of 2**32 and more.
LONG_TENSOR_VERSION = 5


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

    @property
    def deserialized_length(self) -> int:
        """The bytes of the tensor in memory; of a meta tensor no data is stored."""
        if self.data_length > 0:
            return self.data_length
        import numpy

        return numpy.dtype(self.dtype).itemsize * math.prod(self.shape)

    @property
    def is_long_tensor(self) -> bool:
        """Whether a dimension may be 2**32 or more."""
        return self.metadata_version >= LONG_TENSOR_VERSION


class FileFeatureFlags(IntFlag):
    """What a file header says of all that follows."""

    encrypted = 1
    versioned_headers = 2


@dataclass(slots=True)
class FileHeader:
    """What stands in front of the index."""

    version_number: int
    feature_flags: FileFeatureFlags
    tensor_size: int
    tensor_count: int
