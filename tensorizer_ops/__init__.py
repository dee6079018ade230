"""Loads and saves tensors in ``.tensors`` files.

Importing this package registers ``torch.ops.tensorizer`` and ``torch.classes.tensorizer``;
:func:`load` and :func:`save` are typed Python fronts of the same.
"""

import importlib as _importlib
import os as _os
import typing as _typing

from tensorizer_ops import errors
from tensorizer_ops._library import load_library as _load_library

__version__ = "0.1.0"

_load_library()

from tensorizer_ops import _python, keys  # noqa: E402
from tensorizer_ops._background import Save, save_async  # noqa: E402
from tensorizer_ops._compat.as_tensorizer import install_as_tensorizer  # noqa: E402
from tensorizer_ops._compile import fakes as _fakes  # noqa: E402, F401
from tensorizer_ops._compile.dynamo import register_with_dynamo as _register_with_dynamo  # noqa: E402
from tensorizer_ops._load_save import load, save  # noqa: E402
from tensorizer_ops._modules import externalize, load_constants, load_into  # noqa: E402
from tensorizer_ops._options import Hashes, Options, Verify  # noqa: E402
from tensorizer_ops._progress import Progress  # noqa: E402
from tensorizer_ops._rewrite import decrypt, digest, encrypt, rekey  # noqa: E402
from tensorizer_ops._targets import Target  # noqa: E402

if _typing.TYPE_CHECKING:
    from tensorizer_ops import (  # noqa: F401
        protobuf,
        serialization,
        stream_io,
        tensors_pb2,
        torch_compat,
        utils,
    )
    from tensorizer_ops.serialization import (
        CryptographyError,
        DecryptionParams,
        EncryptionParams,
        FilterFuncType,
        TensorDeserializer,
        TensorSerializer,
        TensorType,
    )

_register_with_dynamo()

# Who does not need them does not wait for them: each name, and the module that has it.
_LATER = dict.fromkeys(
    (
        "CryptographyError",
        "DecryptionParams",
        "EncryptionParams",
        "FilterFuncType",
        "TensorDeserializer",
        "TensorSerializer",
        "TensorType",
    ),
    "serialization",
)
_MODULES_LATER = frozenset(
    ("protobuf", "serialization", "stream_io", "tensors_pb2", "torch_compat", "utils")
)


# A type checker has the imports above, and would believe this of any name.
if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> _typing.Any:
        if name in _MODULES_LATER:
            return _importlib.import_module(f"{__name__}.{name}")
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_importlib.import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *_MODULES_LATER})


def set_secret(name: str, secret: str | None) -> None:
    """Keeps a secret in this process, for options whose value is ``named:NAME``.

    It is in no program, pickle or message. ``None`` forgets it.
    """
    # What is wrong would be printed otherwise, and with it the secret.
    for what, given in (("the name of a secret", name), ("a secret", secret or "")):
        if not isinstance(given, str):
            raise TypeError(f"{what} is {type(given).__name__}, and must be str")
    _python.set_secret(name, secret or "")


def cmake_prefix_path() -> str:
    """Where CMake finds the package ``TensorizerOps``; torch's own path has to be given as well."""
    return _os.path.join(_os.path.dirname(__file__), "share", "cmake")


__all__ = [
    "CryptographyError",
    "DecryptionParams",
    "EncryptionParams",
    "FilterFuncType",
    "Hashes",
    "Options",
    "Progress",
    "Save",
    "Target",
    "TensorDeserializer",
    "TensorSerializer",
    "TensorType",
    "Verify",
    "__version__",
    "cmake_prefix_path",
    "decrypt",
    "digest",
    "encrypt",
    "errors",
    "externalize",
    "install_as_tensorizer",
    "keys",
    "load",
    "load_constants",
    "load_into",
    "rekey",
    "save",
    "save_async",
    "set_secret",
    "stream_io",
    "torch_compat",
    "utils",
]
