"""The classes of ``tensorizer.serialization``: saving and loading modules and state dicts."""

from __future__ import annotations

from tensorizer_ops._compat.catalog import FilterFuncType
from tensorizer_ops._compat.crypt_params import DecryptionParams, EncryptionParams
from tensorizer_ops._compat.deserializer import TensorDeserializer
from tensorizer_ops._compat.log import logger as logger
from tensorizer_ops._compat.perf import (
    enabled as _enable_perf_stats,  # noqa: F401
    get_perf_stats as _get_perf_stats,  # noqa: F401
)
from tensorizer_ops._compat.serializer import TensorSerializer, cpu_count as cpu_count
from tensorizer_ops._compat.types import (
    LONG_TENSOR_VERSION,
    FileFeatureFlags as _FileFeatureFlags,  # noqa: F401
    FileHeader as _FileHeader,  # noqa: F401
    HashType as HashType,
    TensorEntry as TensorEntry,
    TensorHash as TensorHash,
    TensorType,
)
from tensorizer_ops._compat.values import current_cuda_device as _resolve_cuda_device  # noqa: F401
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

# Versions of the format; their names say which feature needs which version (docs/format.md).
TENSORIZER_VERSION = 5
LONG_TENSOR_TENSORIZER_VERSION = LONG_TENSOR_VERSION
META_TENSOR_TENSORIZER_VERSION = 4
ENCRYPTION_TENSORIZER_VERSION = 3
OPAQUE_TENSORIZER_VERSION = 2
NON_OPAQUE_TENSORIZER_VERSION = 1

TENSORIZER_MAGIC = b"|TZR|"
OPAQUE_DTYPE_SEP = "\0"

# None because tensors are not compressed.
lz4 = None
