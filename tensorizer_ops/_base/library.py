"""Loads the compiled libraries into the process."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys

PACKAGE = os.path.dirname(os.path.dirname(__file__))

# The libraries that ours is linked against, and the Debian and Fedora packages that contain them.
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
    """Return the X.Y of X.Y.Z+anything: the part that binary compatibility depends on."""
    return ".".join(torch_version.partition("+")[0].split(".")[:2])


def _import_error(error: BaseException, torch_version: str) -> ImportError:
    """Turn an error of the dynamic loader into an ImportError that says what to do."""
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
        "again to build it for the installed version"
    )


def _installed_torch() -> str:
    """Return the version of torch that an import would find.

    Reads it from torch's files, and imports torch only if they do not contain it.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None:
        raise ModuleNotFoundError(
            f"tensorizer_ops needs torch {' or '.join(built_for())}, and there is none: run `pip "
            "install torch`",
            name="torch",
        )
    with (
        contextlib.suppress(OSError),
        open(os.path.join(os.path.dirname(spec.origin or ""), "version.py")) as file,
    ):
        if found := re.search(r"^__version__ = ['\"](.+)['\"]", file.read(), re.MULTILINE):
            return found[1]
    import torch

    return torch.__version__


def _path_for(version: str) -> str:
    """Return where the library for the X.Y of torch is."""
    return os.path.join(PACKAGE, f"torch_{version.replace('.', '_')}", "libtensorizer_ops.so")


def built_for() -> list[str]:
    """Return the X.Y of each torch that there is a library for, the oldest first."""
    found = []
    for name in os.listdir(PACKAGE):
        if match := re.fullmatch(r"torch_(\d+)_(\d+)", name):
            found.append((int(match[1]), int(match[2])))
    versions = [f"{major}.{minor}" for major, minor in sorted(found)]
    return [version for version in versions if os.path.exists(_path_for(version))]


def library_path(torch_version: str = "") -> str:
    """Return where the library for a torch is, by default for the one that an import finds."""
    torch_version = torch_version or _running_torch()
    running = _version(torch_version)
    path = _path_for(running)
    if os.path.exists(path):
        return path
    known = built_for()
    if not known:
        raise ImportError(
            f"tensorizer_ops is not built in {PACKAGE}: run `make build` or "
            "`pip install -e .` there, or start Python in another folder to import an installed one"
        )
    raise ImportError(
        f"tensorizer_ops was built for torch {', '.join(known)}, and this is torch "
        f"{torch_version}: install a tensorizer_ops for torch {running}, or build it here "
        "(`pip install .` in its sources)"
    )


def _running_torch() -> str:
    return getattr(sys.modules.get("torch"), "__version__", None) or _installed_torch()


def load_core() -> None:
    """Load the library that needs no torch."""
    torch_version = _running_torch()
    library_path(torch_version)  # raises for a torch that has none
    try:
        from tensorizer_ops import _core  # noqa: F401
    except ImportError as error:
        raise _import_error(error, torch_version) from None


def load_library() -> None:
    """Load the library that registers the ops with torch."""
    import torch

    path = library_path(torch.__version__)
    try:
        torch.ops.load_library(path)
    except OSError as error:
        # torch's error only names the library; the loader's error, its cause, says what is wrong.
        raise _import_error(error.__cause__ or error, torch.__version__) from None
    from tensorizer_ops import _core

    _core.set_hooks()
