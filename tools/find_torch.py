"""Finds the torch of the environment that a build is for.

Front ends build in isolation, without the packages of that environment. The library runs with no
other torch than the one that it was built against, so it has to be that one, never a fresh one. pip
runs the Python of that environment; others (uv, build) run one of their own, and which environment
they are for stands in how they were called.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterator
from pathlib import Path

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def _environment_of(argument: str, folder: Path) -> Iterator[Path]:
    """The environment that an argument names, or whose Python or program it is."""
    place = folder / argument.removeprefix("--python=")
    for prefix in (place, place.parent.parent):
        # Not Path.is_file(), which does not take what is too long to be a path.
        if argument and os.path.isfile(prefix / "pyvenv.cfg"):
            yield prefix


def _environments_of(process: Path) -> Iterator[Path]:
    folder = Path(os.readlink(process / "cwd"))
    for argument in os.fsdecode((process / "cmdline").read_bytes()).split("\0"):
        yield from _environment_of(argument, folder)
    variables = dict(
        variable.partition("=")[::2]
        for variable in os.fsdecode((process / "environ").read_bytes()).split("\0")
    )
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if variables.get(name):
            yield Path(variables[name])
    # Which uv takes where none is active.
    yield from (parent / ".venv" for parent in (folder, *folder.parents))


def environments_above(pid: int, proc: Path = Path("/proc")) -> Iterator[Path]:
    """The environments that a process and those that started it work for, the nearest first."""
    while pid > 1:
        process = proc / str(pid)
        try:
            yield from _environments_of(process)
            pid = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended, or belongs to another user
            return


def site_packages_with_torch(caller: int, proc: Path = Path("/proc")) -> str | None:
    """Looks in this environment, and in those of the process that called the build."""
    above = (
        str(prefix / "lib" / PYTHON / "site-packages")
        for prefix in environments_above(caller, proc)
    )
    for packages in (*site.getsitepackages(), *above):
        if Path(packages, "torch", "version.py").is_file():
            return packages
    return None
