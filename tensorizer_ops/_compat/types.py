"""Small types of the format, with ``tensorizer``'s names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

# The version of the format that supports dimensions of 2**32 and more.
LONG_TENSOR_VERSION = 5


class TensorType(IntEnum):
    """How a tensor was saved: as a parameter, a buffer or part of a state dict."""

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
    """The fields of one tensor in the index and in its header."""

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
        """The bytes of the tensor in memory. The file stores no data of a meta tensor."""
        if self.data_length > 0:
            return self.data_length
        import numpy

        return numpy.dtype(self.dtype).itemsize * math.prod(self.shape)

    @property
    def is_long_tensor(self) -> bool:
        """Whether a dimension may be 2**32 or more."""
        return self.metadata_version >= LONG_TENSOR_VERSION


class FileFeatureFlags(IntFlag):
    """Features of a file, in its header."""

    encrypted = 1
    versioned_headers = 2


@dataclass(slots=True)
class FileHeader:
    """The file header, which precedes the index."""

    version_number: int
    feature_flags: FileFeatureFlags
    tensor_size: int
    tensor_count: int
