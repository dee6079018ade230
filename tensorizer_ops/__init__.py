"""Loads and saves tensors in ``.tensors`` and safetensors files.

Importing this package registers ``torch.ops.tensorizer`` and ``torch.classes.tensorizer``: at once
if torch is already imported, otherwise as soon as it is. :func:`load` and :func:`save` are typed
Python functions on top of these ops.
"""

import importlib as _importlib
import os as _os
import sys as _sys
import typing as _typing

from tensorizer_ops import errors as errors
from tensorizer_ops._base import library as _library, old_names as _old_names
from tensorizer_ops._base.arguments import checked as _checked
from tensorizer_ops._base.options import (
    Hashes as Hashes,
    KnownOptions as KnownOptions,
    Options as Options,
    Verify as Verify,
)
from tensorizer_ops._base.progress import Progress as Progress
from tensorizer_ops._base.slices import Slices as Slices
from tensorizer_ops._registration import register as _register

__version__ = "0.1.0"

if _typing.TYPE_CHECKING:
    from tensorizer_ops import (
        checkpoint as checkpoint,
        distributed as distributed,
        hf as hf,
        keys as keys,
        protobuf as protobuf,
        safetensors as safetensors,
        serialization as serialization,
        stream_io as stream_io,
        tensors_pb2 as tensors_pb2,
        torch_compat as torch_compat,
        trust as trust,
        utils as utils,
    )
    from tensorizer_ops._attest.attest import attest as attest
    from tensorizer_ops._attest.compared import Attestation as Attestation
    from tensorizer_ops._compat.as_tensorizer import install_as_tensorizer as install_as_tensorizer
    from tensorizer_ops._front.background import Save as Save, save_async as save_async
    from tensorizer_ops._front.deltas import apply as apply, delta as delta
    from tensorizer_ops._front.iterate import iterate as iterate
    from tensorizer_ops._front.load_save import (
        load as load,
        load_slices as load_slices,
        save as save,
    )
    from tensorizer_ops._front.modules import (
        IncompatibleKeys as IncompatibleKeys,
        externalize as externalize,
        load_constants as load_constants,
        load_into as load_into,
        verify_tensors as verify_tensors,
    )
    from tensorizer_ops._front.prefetch import Prefetch as Prefetch
    from tensorizer_ops._front.reader import Reader as Reader
    from tensorizer_ops._front.rewrite import (
        Updated as Updated,
        convert as convert,
        decrypt as decrypt,
        digest as digest,
        encrypt as encrypt,
        rekey as rekey,
        update as update,
    )
    from tensorizer_ops._front.writer import Writer as Writer
    from tensorizer_ops._hf.folders import Copied as Copied, download as download, upload as upload
    from tensorizer_ops._versions.follower import follow as follow
    from tensorizer_ops._versions.listing import Version as Version
    from tensorizer_ops._versions.publisher import Publisher as Publisher
    from tensorizer_ops.serialization import (
        CryptographyError as CryptographyError,
        DecryptionParams as DecryptionParams,
        EncryptionParams as EncryptionParams,
        FilterFuncType as FilterFuncType,
        TensorDeserializer as TensorDeserializer,
        TensorSerializer as TensorSerializer,
        TensorType as TensorType,
    )
    from tensorizer_ops.trust import sign as sign

# Names with their module, which is imported when the name is first used. All others need torch.
_WITHOUT_TORCH = ("_hf.folders", "trust")
_LATER = {
    name: module
    for module, names in {
        "_attest.attest": ("attest",),
        "_front.background": ("Save", "save_async"),
        "_compat.as_tensorizer": ("install_as_tensorizer",),
        "_attest.compared": ("Attestation",),
        "_front.deltas": ("apply", "delta"),
        "_front.iterate": ("iterate",),
        "_front.load_save": ("load", "load_slices", "save"),
        "_front.modules": (
            "IncompatibleKeys",
            "externalize",
            "load_constants",
            "load_into",
            "verify_tensors",
        ),
        "_front.prefetch": ("Prefetch",),
        "_front.reader": ("Reader",),
        "_front.rewrite": (
            "Updated",
            "convert",
            "decrypt",
            "digest",
            "encrypt",
            "rekey",
            "update",
        ),
        "_front.writer": ("Writer",),
        "_versions.follower": ("follow",),
        "_versions.listing": ("Version",),
        "_versions.publisher": ("Publisher",),
        "_hf.folders": ("Copied", "download", "upload"),
        "trust": ("sign",),
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
# Modules that are imported when they are first used, and those of them that `import *` leaves out.
_MODULES = (
    "checkpoint",
    "distributed",
    "hf",
    "keys",
    "stream_io",
    "torch_compat",
    "trust",
    "utils",
)
_MORE_MODULES = ("protobuf", "safetensors", "serialization", "tensors_pb2")


# Functions of modules that callers look for here.
_ELSEWHERE = {
    "hf": ("from_pretrained", "save_pretrained"),
    "keys": ("from_passphrase",),
    "safetensors": ("load_file", "load_model", "safe_open", "save_file", "save_model"),
    "stream_io": ("open_stream",),
    "utils": ("no_init_or_tensor",),
}

# Hidden from type checkers: with a module `__getattr__` they would accept any attribute name.
if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> _typing.Any:
        if name not in (*_LATER, *_MODULES, *_MORE_MODULES):
            where = [module for module, names in _ELSEWHERE.items() if name in names]
            advice = f": did you mean {__name__}.{where[0]}.{name}?" if where else ""
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}{advice}",
                name=name,
                obj=_sys.modules[__name__],
            )
        if _LATER.get(name, name) not in _WITHOUT_TORCH:
            _register.register_with_torch()
        if name not in _LATER:
            return _importlib.import_module(f"{__name__}.{name}")
        value = getattr(_importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *_MODULES, *_MORE_MODULES})


@_checked
def set_secret(name: str, secret: str | None) -> None:
    """Store a secret in this process, for options whose value is ``named:NAME``.

    The secret never appears in a program, a pickle or an error message.

    Args:
        name: the name that ``named:NAME`` refers to.
        secret: the secret; ``None`` removes it.
    """
    _core.set_secret(name, secret or "")


def library_path() -> str:
    """Return the library for the installed torch, which ``torch.ops.load_library`` and C++ load."""
    return _library.library_path()


def cmake_prefix_path() -> str:
    """Return the CMake prefix path of the package ``TensorizerOps``; torch's is needed as well."""
    return _os.path.join(_os.path.dirname(__file__), "share", "cmake")


_library.load_core()

from tensorizer_ops import _core  # noqa: E402
from tensorizer_ops._base.targets import (  # noqa: E402
    Sink as Sink,
    Source as Source,
    Target as Target,
)
from tensorizer_ops._front.info import (  # noqa: E402
    Info as Info,
    StoredTensor as StoredTensor,
)
from tensorizer_ops._front.inspection import (  # noqa: E402
    info as info,
    metadata as metadata,
    names as names,
    verify as verify,
)

__all__ = sorted(
    {*(name for name in globals() if not name.startswith("_")), *_LATER, *_MODULES, "__version__"}
)

_register.register_when_torch_is_imported()
_old_names.keep()
