"""Checks that the rooms of csrc know only the rooms under them.

Also that nothing in csrc knows of Python, and that only the top rooms know of torch.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "csrc"

# From the bottom up. The front door, files of csrc itself, knows all of them.
ROOMS = ["base", "codec", "io", "format", "engine", "transfer", "ops"]
ROOMS_WITH_TORCH = {"transfer", "ops"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
# Headers of torch that include Python.h count as Python.
PYTHON = re.compile(
    r"Python\.h$|pybind11/|torch/(extension|python)\.h$"
    r"|torch/csrc/(Exceptions\.h|python_|utils/(pybind|object_ptr|python_))"
)


def faults(path: Path) -> list[str]:
    """What is wrong with the includes of one file."""
    room = path.relative_to(ROOT).parts[0] if path.parent != ROOT else None
    found = []
    if room is not None and room not in ROOMS:
        return [f"{room} is no room: name it in tools/check_rooms.py"]
    for bracket, header in INCLUDE.findall(path.read_text()):
        if PYTHON.match(header):
            found.append(f"{header} brings Python, of which csrc knows nothing")
        elif TORCH.match(header):
            if room is not None and room not in ROOMS_WITH_TORCH:
                found.append(f"{header} brings torch, of which {room} knows nothing")
        elif bracket == '"':
            if not (ROOT / header).is_file():
                found.append(f"{header} is not in csrc")
            elif room is not None:
                other = header.partition("/")[0]
                if other not in ROOMS or ROOMS.index(other) > ROOMS.index(room):
                    found.append(f"{header} is above {room}")
    return found


def main() -> int:
    files = sorted(path for path in ROOT.rglob("*") if path.suffix in {".h", ".cpp"})
    count = 0
    for path in files:
        for fault in faults(path):
            print(f"{path.relative_to(ROOT.parent)}: {fault}", file=sys.stderr)
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
