"""Builds the libraries that replace functions of the C library in another process."""

from __future__ import annotations

import subprocess
from pathlib import Path


def preloaded(folder: Path, name: str = "preload") -> Path:
    """Return the path of the library that is made of a source beside this file, for LD_PRELOAD."""
    library = folder / f"{name}.so"
    source = Path(__file__).parent / f"{name}.c"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library
