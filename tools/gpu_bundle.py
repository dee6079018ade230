"""Packs what a machine with a GPU needs, but Python and torch: gpu_bundle.py WHEEL FOLDER

The folder gets the package with all of its libraries, a check of loads onto a GPU, and the
benchmark of them. On that machine, with the Python and the torch that the wheel was built for:

    PYTHONPATH=FOLDER python FOLDER/gpu_check.py
    PYTHONPATH=FOLDER python FOLDER/gpu.py --size 16 --directory /dev/shm --json FILE
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = (
    "tools/gpu_check.py",
    *(f"benchmarks/{name}.py" for name in ("gpu", "memory", "workloads")),
)
MOST = 64 << 20
KERNELS = "tensorizer_ops/libtensorizer_ops_cuda.so"


def main() -> None:
    wheel, folder = Path(sys.argv[1]), Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ZipFile(wheel) as packed:
        if KERNELS not in packed.namelist():
            sys.exit(f"{wheel.name} has no {Path(KERNELS).name}: run make cuda, and build it again")
        packed.extractall(folder)
    for program in PROGRAMS:
        shutil.copy(ROOT / program, folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > MOST:
        sys.exit(f"{folder} has {size / (1 << 20):.0f} MiB, more than {MOST >> 20}")
    print(f"{folder}: {size / (1 << 20):.1f} MiB")


if __name__ == "__main__":
    main()
