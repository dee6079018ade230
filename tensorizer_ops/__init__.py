"""Loads and saves tensors in ``.tensors`` files.

Importing this package registers ``torch.ops.tensorizer`` and ``torch.classes.tensorizer``;
:func:`load` and :func:`save` are typed Python fronts of the same.
"""

import os as _os

from tensorizer_ops import errors
from tensorizer_ops._library import load_library as _load_library

__version__ = "0.1.0"

_load_library()

from tensorizer_ops import _fakes as _fakes  # noqa: E402
from tensorizer_ops import _python, keys  # noqa: E402
from tensorizer_ops._background import Save, save_async  # noqa: E402
from tensorizer_ops._dynamo import register_with_dynamo as _register_with_dynamo  # noqa: E402
from tensorizer_ops._front import load, save  # noqa: E402
from tensorizer_ops._modules import externalize, load_constants, load_into  # noqa: E402
from tensorizer_ops._rewrite import decrypt, digest, encrypt, rekey  # noqa: E402

_register_with_dynamo()


def set_secret(name: str, secret: str | None) -> None:
    """Keeps a secret in this process, for options whose value is ``named:NAME``.

    It is in no program, pickle or message. ``None`` forgets it.
    """
    _python.set_secret(name, secret or "")


def cmake_prefix_path() -> str:
    """Where CMake finds the package ``TensorizerOps``; torch's own path has to be given as well."""
    return _os.path.join(_os.path.dirname(__file__), "share", "cmake")


__all__ = [
    "Save",
    "__version__",
    "cmake_prefix_path",
    "decrypt",
    "digest",
    "encrypt",
    "errors",
    "externalize",
    "keys",
    "load",
    "load_constants",
    "load_into",
    "rekey",
    "save",
    "save_async",
    "set_secret",
]
