"""Copies the sources to a folder, for builds that must not disturb those in place."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def copy_sources(tree: Path) -> None:
    """Copy what git knows and does not ignore; a file that is the same keeps its time."""
    listed = subprocess.run(
        ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"),
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        source, target = ROOT / name, tree / name
        if not name or not source.is_file():
            continue
        if target.exists() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    environment = tree / ".venv"
    if not environment.exists():
        environment.symlink_to(ROOT / ".venv")
