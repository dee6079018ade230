"""Finds the torch of the environment that a build is for.

Front ends build in isolation, without the packages of that environment. The library works only with
the torch that it was built against, so the build must use the environment's torch and not install
another one. pip runs the environment's Python; others (uv, build) run a Python of their own, and
the environment must be found from their arguments, working directory and variables.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterator
from pathlib import Path

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def _environment_of(argument: str, folder: Path) -> Iterator[Path]:
    """Yield the environment that an argument names, or that contains the program it names."""
    place = folder / argument.removeprefix("--python=")
    for prefix in (place, place.parent.parent):
        # Not Path.is_file(), which raises for an argument that is too long for a path.
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
    # The environments that uv uses if none is active.
    yield from (parent / ".venv" for parent in (folder, *folder.parents))


def environments_above(pid: int, proc: Path = Path("/proc")) -> Iterator[Path]:
    """Yield the environments that a process and its ancestors work for, the nearest first."""
    while pid > 1:
        process = proc / str(pid)
        try:
            yield from _environments_of(process)
            pid = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # the process has ended, or belongs to another user
            return


def site_packages_with_torch(caller: int, proc: Path = Path("/proc")) -> str | None:
    """Return the site-packages with torch of this environment, or of one that ``caller`` is for."""
    above = (
        str(prefix / "lib" / PYTHON / "site-packages")
        for prefix in environments_above(caller, proc)
    )
    for packages in (*site.getsitepackages(), *above):
        if Path(packages, "torch", "version.py").is_file():
            return packages
    return None
