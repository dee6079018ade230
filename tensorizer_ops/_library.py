"""Loads the compiled libraries into the process.

What needs no torch is loaded with the package. The ops are registered when torch is there: at once,
or when the program imports it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import sys
import warnings

from tensorizer_ops._import_hook import when_imported

# What the library is linked against, and the packages of Debian and Fedora that have it.
RUNTIME_PACKAGES = {
    "libhiredis": ("libhiredis0.14", "hiredis"),
    "libcurl": ("libcurl4", "libcurl"),
    "libcrypto": ("libssl3", "openssl-libs"),
    "libdeflate": ("libdeflate0", "libdeflate"),
    "libsodium": ("libsodium23", "libsodium"),
    "libsimdjson": ("libsimdjson14", "simdjson"),
    "libz": ("zlib1g", "zlib"),
}


def _version(torch_version: str) -> str:
    """The X.Y of X.Y.Z+anything: what binary compatibility depends on."""
    return ".".join(torch_version.partition("+")[0].split(".")[:2])


def _import_error(error: BaseException, torch_version: str) -> ImportError:
    """What the loader of shared libraries says, with what to do."""
    missing = re.match(r"((lib[^/]+?)\.so[^/:]*): cannot open shared object file", str(error))
    if missing is None or missing[2] not in RUNTIME_PACKAGES:
        return ImportError(
            f"tensorizer_ops cannot be loaded ({error}): install it again to build it for this "
            f"system and torch {torch_version}"
        )
    debian, fedora = RUNTIME_PACKAGES[missing[2]]
    return ImportError(
        f"tensorizer_ops needs {missing[1]}, which this system does not have: run `apt install "
        f"{debian}` (Debian, Ubuntu) or `dnf install {fedora}` (Fedora), or install tensorizer_ops "
        "again to build it for the version that is there"
    )


def _installed_torch() -> str:
    """The version of the torch that an import would find; imports it where its files do not say."""
    spec = importlib.util.find_spec("torch")
    if spec is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    with (
        contextlib.suppress(OSError),
        open(os.path.join(os.path.dirname(spec.origin or ""), "version.py")) as file,
    ):
        if found := re.search(r"^__version__ = ['\"](.+)['\"]", file.read(), re.MULTILINE):
            return found[1]
    import torch

    return torch.__version__


def _check_torch(torch_version: str) -> None:
    try:
        from tensorizer_ops import _build
    except ImportError:
        raise ImportError(
            f"tensorizer_ops is not built in {os.path.dirname(__file__)}: run `make build` or "
            "`pip install -e .` there, or start Python in another folder to import an installed one"
        ) from None
    running = _version(torch_version)
    if running != _build.TORCH:
        raise ImportError(
            f"tensorizer_ops was built for torch {_build.TORCH}, and this is torch "
            f"{torch_version}: install tensorizer_ops again to build it for torch {running}"
        )


def load_core() -> None:
    """Load what needs no torch."""
    torch = sys.modules.get("torch")
    torch_version = getattr(torch, "__version__", None) or _installed_torch()
    _check_torch(torch_version)
    try:
        from tensorizer_ops import _core  # noqa: F401
    except ImportError as error:
        raise _import_error(error, torch_version) from None


def load_library() -> None:
    """Load what registers the ops with torch."""
    import torch

    _check_torch(torch.__version__)
    try:
        torch.ops.load_library(os.path.join(os.path.dirname(__file__), "libtensorizer_ops.so"))
    except OSError as error:
        # torch says which library it is, and the loader, before that, what is wrong.
        raise _import_error(error.__cause__ or error, torch.__version__) from None
    # Only now: it is linked against the library.
    importlib.import_module("tensorizer_ops._python")


def register_with_torch() -> None:
    """Import torch, if that was not done yet, and register the ops."""
    # In this order, in which the hook below takes both import locks as well.
    import torch  # noqa: F401

    importlib.import_module("tensorizer_ops._with_torch")


def register_when_torch_is_imported() -> None:
    """Register the ops now if torch is imported, and otherwise as soon as it is."""
    # Another thread may be importing torch in this moment, too far on to be noticed.
    if "torch" in sys.modules or len(sys._current_frames()) > 1:
        register_with_torch()
    else:
        when_imported("torch", _register_behind_torch)


def _register_behind_torch() -> None:
    try:
        register_with_torch()
    except Exception as error:
        # Torch is no worse for it. Whoever uses this package gets the error.
        warnings.warn(f"torch.ops.tensorizer is missing: {error}", RuntimeWarning, stacklevel=2)
