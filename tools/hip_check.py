"""Converts csrc/cuda to HIP, for AMD's GPUs, with torch's hipify: hip_check.py FOLDER

Writes the sources to FOLDER/hip, and fails if anything of CUDA is left in them. They are not
compiled, which takes ROCm.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import sys
from pathlib import Path

from torch.utils.hipify import hipify_python

SOURCES = Path(__file__).resolve().parent.parent / "csrc" / "cuda"
# Our own names, and the language's macro.
OURS = re.compile(r"tensorizer_cuda_\w+|TENSORIZER_CUDA_\w+|__CUDACC__|__CUDA_ARCH__|//.*")


def convert(folder: Path) -> list[Path]:
    """Return the converted sources."""
    given = folder / "cuda"
    shutil.copytree(SOURCES, given)
    with contextlib.redirect_stdout(io.StringIO()):
        hipify_python.hipify(
            project_directory=str(folder),
            output_directory=str(folder),
            includes=[str(given / "*")],
            header_include_dirs=[str(folder)],
            is_pytorch_extension=True,
        )
    shutil.rmtree(given)
    return sorted((folder / "hip").iterdir())


def left(source: Path) -> list[str]:
    """Return the lines that still name CUDA."""
    lines = OURS.sub("", source.read_text()).splitlines()
    return [
        f"{source.name}:{n}: {line}" for n, line in enumerate(lines, 1) if "cuda" in line.lower()
    ]


def main() -> None:
    sources = convert(Path(sys.argv[1]).resolve())
    faults = [line for source in sources for line in left(source)]
    if len(sources) != len(list(SOURCES.iterdir())):
        faults.append(f"of {len(list(SOURCES.iterdir()))} files, {len(sources)} were converted")
    sys.exit("\n".join(faults) or None)


if __name__ == "__main__":
    main()
