"""Installs a wheel into an empty environment, and runs the tests with it, outside of the sources.

    python tools/check_wheel.py dist/*.whl [--torch torch==2.13.0]

Also checks that the wheel uses no library of the system that it should contain. Tests of the source
tree (``tests/package``) are left out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("api", "compat", "remote", "security")
# Prints the libraries of the system that a load from a server uses, but for those of C and C++.
LIBRARIES = """
import torch
before = set(open("/proc/self/maps").read().split())
import tensorizer_ops
torch.ops.tensorizer.names
after = set(open("/proc/self/maps").read().split())
own = ("libc.", "libm.", "libdl.", "libpthread.", "librt.", "libstdc++.", "libgcc_s.", "libresolv.")
for path in sorted(after - before):
    if path.startswith(("/usr/lib/", "/lib/")) and not path.rpartition("/")[2].startswith(own):
        print(path)
"""


def run(*command: str, **options: object) -> None:
    done = subprocess.run(command, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--torch", default="torch==2.13.0", help="what pip installs as torch")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = folder / "environment"
        venv.create(environment, with_pip=True)
        python = str(environment / "bin" / "python")
        pip = (python, "-m", "pip", "install", "--quiet", given.torch)
        run(*pip, str(given.wheel.resolve()))
        work = folder / "work"
        # The simulated device of the tests is built from csrc.
        for part in ("tests", "local_servers", "examples", "csrc"):
            shutil.copytree(ROOT / part, work / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", work)
        found = subprocess.run(
            [python, "-W", "ignore", "-c", LIBRARIES], cwd=work, capture_output=True, text=True
        )
        if found.returncode or found.stdout:
            sys.exit(f"the wheel needs what it does not contain: {found.stdout}{found.stderr}")
        print("The wheel uses no library of the system.")
        run(*pip, "--requirement", str(ROOT / "tools" / "requirements-test.txt"))
        workers = str(len(os.sched_getaffinity(0)))
        options = ("-q", "-n", workers, "--dist", "loadgroup")
        tests = [str(work / "tests" / test) for test in TESTS]
        run(python, "-m", "pytest", *options, *tests, cwd=work)


if __name__ == "__main__":
    main()
