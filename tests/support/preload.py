"""Builds the library that replaces functions of the C library in another process (preload.c)."""

from __future__ import annotations

import subprocess
from pathlib import Path


def preloaded(folder: Path) -> Path:
    """Return the path of the library, for LD_PRELOAD."""
    library = folder / "preload.so"
    source = Path(__file__).parent / "preload.c"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library
