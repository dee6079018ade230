"""Copies the sources to a folder, for builds that must not disturb those in place."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
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


class ChangedTree:
    """A copy of the sources whose C++ tests are built with one change after another."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.build = tree / "build" / "tests"

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def make(self, *targets: str) -> subprocess.CompletedProcess[str]:
        """Build these targets, or all."""
        chosen = ("--target", *targets) if targets else ()
        return self.run("cmake", "--build", str(self.build), *chosen)

    def prepare(self) -> subprocess.CompletedProcess[str]:
        """Copy the sources, and configure the build."""
        copy_sources(self.tree)
        # A change may leave a variable unused, which is no error here.
        options = ("-G", "Ninja", "-DLAYERS=SHARED", "-DCMAKE_CXX_FLAGS=-w")
        return self.run("cmake", "-S", "tests/cpp", "-B", str(self.build), *options)

    @contextmanager
    def changed(self, name: str, text: str) -> Iterator[None]:
        """Give a file another text for a while."""
        file = self.tree / name
        original = file.read_text()
        file.write_text(text)
        try:
            yield
        finally:
            file.write_text(original)
