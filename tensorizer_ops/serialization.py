"""The classes of ``tensorizer.serialization``: saving and loading modules and state dicts."""

from __future__ import annotations

import logging

from tensorizer_ops._catalog import FilterFuncType
from tensorizer_ops._crypt_params import DecryptionParams, EncryptionParams
from tensorizer_ops._deserializer import TensorDeserializer
from tensorizer_ops._perf import get_perf_stats as _get_perf_stats  # noqa: F401
from tensorizer_ops._serializer import TensorSerializer
from tensorizer_ops._serializer import cpu_count as cpu_count
from tensorizer_ops._types import HashType as HashType
from tensorizer_ops._types import TensorEntry as TensorEntry
from tensorizer_ops._types import TensorHash as TensorHash
from tensorizer_ops._types import TensorType
from tensorizer_ops.errors import Crypto, HashMismatch

__all__ = [
    "CryptographyError",
    "DecryptionParams",
    "EncryptionParams",
    "FilterFuncType",
    "TensorDeserializer",
    "TensorSerializer",
    "TensorType",
]

CryptographyError = Crypto
HashMismatchError = HashMismatch

logger = logging.getLogger(__name__)

# Versions of the format, and what needs them (docs/format.md).
TENSORIZER_VERSION = 5
LONG_TENSOR_TENSORIZER_VERSION = 5
META_TENSOR_TENSORIZER_VERSION = 4
ENCRYPTION_TENSORIZER_VERSION = 3
OPAQUE_TENSORIZER_VERSION = 2
NON_OPAQUE_TENSORIZER_VERSION = 1

TENSORIZER_MAGIC = b"|TZR|"
OPAQUE_DTYPE_SEP = "\0"

# Tensors are not compressed.
lz4 = None
