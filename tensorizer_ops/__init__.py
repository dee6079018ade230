"""Loads and saves tensors in ``.tensors`` and safetensors files.

Importing this package registers ``torch.ops.tensorizer`` and ``torch.classes.tensorizer``: at once
if torch is already imported, otherwise as soon as it is. :func:`load` and :func:`save` are typed
Python functions on top of these ops.
"""

import importlib as _importlib
import os as _os
import typing as _typing

from tensorizer_ops import _library, errors
from tensorizer_ops._arguments import checked as _checked
from tensorizer_ops._options import Hashes, Options, Verify
from tensorizer_ops._progress import Progress
from tensorizer_ops._slices import Slices

__version__ = "0.1.0"

if _typing.TYPE_CHECKING:
    from tensorizer_ops import (  # noqa: F401
        checkpoint,
        distributed,
        hf,
        keys,
        protobuf,
        safetensors,
        serialization,
        stream_io,
        tensors_pb2,
        torch_compat,
        utils,
    )
    from tensorizer_ops._background import Save, save_async
    from tensorizer_ops._compat.as_tensorizer import install_as_tensorizer
    from tensorizer_ops._iterate import iterate
    from tensorizer_ops._load_save import load, load_slices, save
    from tensorizer_ops._modules import (
        IncompatibleKeys,
        externalize,
        load_constants,
        load_into,
        verify_tensors,
    )
    from tensorizer_ops._prefetch import Prefetch
    from tensorizer_ops._reader import Reader
    from tensorizer_ops._rewrite import (
        Updated,
        convert,
        decrypt,
        digest,
        encrypt,
        rekey,
        update,
    )
    from tensorizer_ops._writer import Writer
    from tensorizer_ops.serialization import (
        CryptographyError,
        DecryptionParams,
        EncryptionParams,
        FilterFuncType,
        TensorDeserializer,
        TensorSerializer,
        TensorType,
    )

# Names that need torch, each with its module, which is imported when the name is first used.
_LATER = {
    name: module
    for module, names in {
        "_background": ("Save", "save_async"),
        "_compat.as_tensorizer": ("install_as_tensorizer",),
        "_iterate": ("iterate",),
        "_load_save": ("load", "load_slices", "save"),
        "_modules": (
            "IncompatibleKeys",
            "externalize",
            "load_constants",
            "load_into",
            "verify_tensors",
        ),
        "_prefetch": ("Prefetch",),
        "_reader": ("Reader",),
        "_rewrite": (
            "Updated",
            "convert",
            "decrypt",
            "digest",
            "encrypt",
            "rekey",
            "update",
        ),
        "_writer": ("Writer",),
        "serialization": (
            "CryptographyError",
            "DecryptionParams",
            "EncryptionParams",
            "FilterFuncType",
            "TensorDeserializer",
            "TensorSerializer",
            "TensorType",
        ),
    }.items()
    for name in names
}
_MODULES_LATER = frozenset(
    (
        "checkpoint",
        "distributed",
        "hf",
        "keys",
        "protobuf",
        "safetensors",
        "serialization",
        "stream_io",
        "tensors_pb2",
        "torch_compat",
        "utils",
    )
)


# Hidden from type checkers: with a module `__getattr__` they would accept any attribute name.
if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> _typing.Any:
        # `_python` is linked against torch, so it is imported after torch.
        if name not in _LATER and name not in _MODULES_LATER and name != "_python":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        _library.register_with_torch()
        if name not in _LATER:
            return _importlib.import_module(f"{__name__}.{name}")
        value = getattr(_importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *_MODULES_LATER})


@_checked
def set_secret(name: str, secret: str | None) -> None:
    """Store a secret in this process, for options whose value is ``named:NAME``.

    The secret never appears in a program, a pickle or an error message.

    Args:
        name: the name that ``named:NAME`` refers to.
        secret: the secret; ``None`` removes it.
    """
    _core.set_secret(name, secret or "")


def cmake_prefix_path() -> str:
    """Return the CMake prefix path of the package ``TensorizerOps``; torch's is needed as well."""
    return _os.path.join(_os.path.dirname(__file__), "share", "cmake")


__all__ = [
    "CryptographyError",
    "DecryptionParams",
    "EncryptionParams",
    "FilterFuncType",
    "Hashes",
    "IncompatibleKeys",
    "Info",
    "Options",
    "Prefetch",
    "Progress",
    "Reader",
    "Save",
    "Sink",
    "Slices",
    "Source",
    "StoredTensor",
    "Target",
    "TensorDeserializer",
    "TensorSerializer",
    "TensorType",
    "Updated",
    "Verify",
    "Writer",
    "__version__",
    "checkpoint",
    "cmake_prefix_path",
    "convert",
    "decrypt",
    "digest",
    "distributed",
    "encrypt",
    "errors",
    "externalize",
    "hf",
    "info",
    "install_as_tensorizer",
    "iterate",
    "keys",
    "load",
    "load_constants",
    "load_into",
    "load_slices",
    "metadata",
    "names",
    "rekey",
    "save",
    "save_async",
    "set_secret",
    "stream_io",
    "torch_compat",
    "update",
    "utils",
    "verify",
    "verify_tensors",
]

_library.load_core()

from tensorizer_ops import _core  # noqa: E402
from tensorizer_ops._inspection import (  # noqa: E402
    Info,
    StoredTensor,
    info,
    metadata,
    names,
    verify,
)
from tensorizer_ops._targets import Sink, Source, Target  # noqa: E402

_library.register_when_torch_is_imported()
