"""The examples run, offline, and do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from process import ROOT, TIMEOUT, environment


def run(tmp_path: Path, name: str, *arguments: str) -> str:
    """What an example prints, in an empty folder."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "examples" / name), *arguments],
        cwd=tmp_path,
        env=environment() | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_background_save(tmp_path: Path) -> None:
    shown = run(tmp_path, "background_save.py", "--mebibytes", "8", "--steps", "8")
    for way in ("no save", "save", "save_async", "save in another process"):
        assert f"\n{way} " in shown
