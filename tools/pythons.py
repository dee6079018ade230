"""Finds other Pythons: those of the system, of pyenv, of uv, and of images that build wheels."""

from __future__ import annotations

import sys
from pathlib import Path


def home_of(version: str) -> Path:
    """Return the folder of a Python with its headers, such as that of 3.12."""
    homes = [
        Path("/usr"),
        Path("/usr/local"),
        *Path("/opt/python").glob(f"cp{version.replace('.', '')}-*"),
    ]
    homes += Path.home().glob(f".pyenv/versions/{version}.*")
    homes += Path.home().glob(f".local/share/uv/python/cpython-{version}.*")
    for home in homes:
        if Path(home, "include", f"python{version}", "Python.h").exists():
            return home
    sys.exit(
        f"there is no Python {version} with headers here: install it, for example by pyenv or "
        f"`uv python install {version}`"
    )
