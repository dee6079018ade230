"""Loads the compiled library into the process."""

from __future__ import annotations

import os
import re

import torch

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


def _import_error(error: BaseException) -> ImportError:
    """What the loader of shared libraries says, with what to do."""
    missing = re.match(r"((lib[^/]+?)\.so[^/:]*): cannot open shared object file", str(error))
    if missing is None or missing[2] not in RUNTIME_PACKAGES:
        return ImportError(
            f"tensorizer_ops cannot be loaded ({error}): install it again to build it for this "
            f"system and torch {torch.__version__}"
        )
    debian, fedora = RUNTIME_PACKAGES[missing[2]]
    return ImportError(
        f"tensorizer_ops needs {missing[1]}, which this system does not have: run `apt install "
        f"{debian}` (Debian, Ubuntu) or `dnf install {fedora}` (Fedora), or install tensorizer_ops "
        "again to build it for the version that is there"
    )


def load_library() -> None:
    try:
        from tensorizer_ops import _build
    except ImportError:
        raise ImportError(
            f"tensorizer_ops is not built in {os.path.dirname(__file__)}: run `make build` or "
            "`pip install -e .` there, or start Python in another folder to import an installed one"
        ) from None
    running = _version(torch.__version__)
    if running != _build.TORCH:
        raise ImportError(
            f"tensorizer_ops was built for torch {_build.TORCH}, and this is torch "
            f"{torch.__version__}: install tensorizer_ops again to build it for torch {running}"
        )
    try:
        torch.ops.load_library(os.path.join(os.path.dirname(__file__), "libtensorizer_ops.so"))
    except OSError as error:
        # torch says which library it is, and the loader, before that, what is wrong.
        raise _import_error(error.__cause__ or error) from None
    # Only now: it is linked against the library.
    from tensorizer_ops import _python  # noqa: F401
