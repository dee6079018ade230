"""Builds libtensorizer_ops_cuda.so with a CUDA toolkit.

    build_cuda.py FOLDER | --check | --program SOURCE TARGET

The toolkit is CUDA_HOME, or the one whose nvcc is on the PATH, or that of the packages in
``tools/requirements-cuda.txt``. ``setup.py`` does the same if there is one. The library serves
every torch, and needs a driver of NVIDIA only when it is used. ``--check`` says whether there is a
toolkit, and ``--program`` builds another program with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

LIBRARY = "libtensorizer_ops_cuda.so"
SOURCES = Path(__file__).resolve().parent.parent / "csrc" / "cuda"
# Code for these devices, and for later ones what their driver compiles.
DEVICES = ("80", "86", "89", "90", "100", "120")


def find_toolkit() -> Path | None:
    """Return the folder of a toolkit with nvcc."""
    found = []
    if home := os.environ.get("CUDA_HOME"):
        found.append(Path(home))
    if nvcc := shutil.which("nvcc"):
        found.append(Path(nvcc).resolve().parent.parent)
    found += sorted(Path(sysconfig.get_path("purelib"), "nvidia").glob("cu*"), reverse=True)
    return next((home for home in found if (home / "bin" / "nvcc").is_file()), None)


def command(toolkit: Path, target: Path) -> list[str]:
    """Return the command that builds the library."""
    nvcc = str(toolkit / "bin" / "nvcc")
    known = subprocess.run(
        [nvcc, "--list-gpu-code"], check=True, capture_output=True, text=True
    ).stdout.split()
    devices = [number for number in DEVICES if f"sm_{number}" in known]
    if not devices:
        sys.exit(f"{nvcc} knows none of the devices {', '.join(DEVICES)}: it is too old or too new")
    codes = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in devices]
    codes.append(f"-gencode=arch=compute_{devices[-1]},code=compute_{devices[-1]}")
    # Without --threads: the links for several devices would write one file, and fail now and then.
    return [
        *(nvcc, "-std=c++17", "-O2", "-shared", *codes),
        *("-Xcompiler", "-fPIC,-fvisibility=hidden,-Wall,-Wextra"),
        *("-Xlinker", f"-soname={LIBRARY},--exclude-libs=ALL"),
        *(f"-I{SOURCES.parent}", f"-I{toolkit / 'include'}", f"-L{toolkit / 'lib'}"),
        *("-o", str(target), str(SOURCES / "library.cu")),
    ]


def build(toolkit: Path, folder: Path) -> None:
    """Build the library in a folder, unless it is newer than its sources."""
    target = folder / LIBRARY
    sources = [SOURCES, *SOURCES.iterdir(), Path(__file__)]
    newest = max(path.stat().st_mtime for path in sources)
    if target.exists() and target.stat().st_mtime > newest:
        return
    made = target.with_suffix(".new")
    subprocess.run(command(toolkit, made), check=True)
    os.replace(made, target)


def main() -> None:
    toolkit = find_toolkit()
    if sys.argv[1:] == ["--check"]:
        sys.exit(toolkit is None)
    if toolkit is None:
        sys.exit("there is no nvcc: set CUDA_HOME, or install tools/requirements-cuda.txt")
    if sys.argv[1] == "--program":
        source, target = sys.argv[2:]
        nvcc = toolkit / "bin" / "nvcc"
        subprocess.run([nvcc, "-std=c++20", "-O2", "-o", target, source], check=True)
    else:
        build(toolkit, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
