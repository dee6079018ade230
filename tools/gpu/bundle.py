"""Packs what a machine with a GPU needs, but Python and torch: bundle.py WHEEL FOLDER

The folder gets the package with all of its libraries, a check of loads onto a GPU, the benchmark of
them, run.sh, which runs both, and a README.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAMS = ("run.sh", "check.py")
BENCHMARK = ("__init__.py", "local/gpu*.py", "harness/*.py")
README = """\
tensorizer_ops {wheel}, with all libraries that it needs but torch.

On a machine with an NVIDIA GPU and the Python and torch of this wheel, in this folder:

    ./run.sh --out results

It checks and measures loads onto the GPU for less than ten minutes, each step with a time limit and
a file of its own, and prints a summary. Single steps:

    PYTHONPATH=. python check.py
    PYTHONPATH=. python -m benchmarks.local.gpu --size 8 --directory /dev/shm --json results.json
    PYTHONPATH=. python -m benchmarks.local.gpu_kernels

check.py compares loads onto the GPU with loads onto the CPU, beside a graph and on two streams too,
and fails if the GPU does not verify and decrypt. The benchmark measures loads beside copies from
pinned memory; --size is in GiB, and needs four times as much memory.
"""
MOST = 64 << 20
KERNELS = "tensorizer_ops/libtensorizer_ops_cuda.so"


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    wheel, folder = Path(sys.argv[1]), Path(sys.argv[2])
    if folder.exists():
        sys.exit(f"{folder} exists")
    with ZipFile(wheel) as packed:
        if KERNELS not in packed.namelist():
            sys.exit(f"{wheel.name} has no {Path(KERNELS).name}: run make cuda, and build it again")
        folder.mkdir(parents=True)
        packed.extractall(folder)
    (folder / "README").write_text(README.format(wheel=wheel.stem))
    for program in PROGRAMS:
        shutil.copy(ROOT / "tools" / "gpu" / program, folder)
    for pattern in BENCHMARK:
        for module in (ROOT / "benchmarks").glob(pattern):
            copy = folder / module.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(module, copy)
    shutil.copy(ROOT / "build" / "read_and_copy", folder / "benchmarks" / "local")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > MOST:
        sys.exit(f"{folder} has {size / (1 << 20):.0f} MiB, more than {MOST >> 20}")
    print(f"{folder}: {size / (1 << 20):.1f} MiB")


if __name__ == "__main__":
    main()
