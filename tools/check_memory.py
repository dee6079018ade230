"""Checks that only one file of each language asks torch for the memory of a tensor.

Many kinds of tensors have no memory, or none of their own: a pointer into what they give is null,
or to other bytes. ``csrc/transfer/memory`` and ``tensorizer_ops/_base/memory.py`` ask for all
others, and refuse such tensors. Comments and strings count, so that nothing hides in them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Files that ask for memory, and why.
ALLOWED = {
    "csrc/transfer/memory/memory.cpp": "the one file for C++",
    "csrc/transfer/memory/held_memory.cpp": "holds storages, whatever is in them",
    "csrc/transfer/device/cuda_library.cpp": "a kernel, whose arguments staging has made",
    "tensorizer_ops/_base/memory.py": "the one file for Python",
    "tensorizer_ops/_front/serving.py": "lists methods that a tensor of its class refuses",
}
REQUEST = re.compile(
    r"\b(?:\w*_)?(?:data_ptr(?:_\w+)?|data_address|(?:un)?typed_storage)\b"
    r"|\b(?:unsafeGetStorageImpl|StorageImpl|(?:mutable|const)_data)\b"
    r"|\b(?:packed_)?accessor(?:32|64)?\b|(?:\.|->)\s*(?:unsafe_)?storage\s*\("
)


def requests(text: str) -> list[tuple[int, str]]:
    """Return the line and the name of each request for memory."""
    return [(text.count("\n", 0, found.start()) + 1, found[0]) for found in REQUEST.finditer(text)]


def main() -> None:
    faults = []
    left = set(ALLOWED)
    for folder in ("csrc", "tensorizer_ops"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {".h", ".cpp", ".cu", ".py"}:
                continue
            name = path.relative_to(ROOT).as_posix()
            found = requests(path.read_text())
            if found and name in ALLOWED:
                left.remove(name)
                continue
            faults += [
                f"{name}:{line}: {what} may be null or of something else: use transfer/memory or "
                "_base/memory.py (tools/check_memory.py)"
                for line, what in found
            ]
    faults += [f"{name} does not ask for memory: take it out of ALLOWED" for name in sorted(left)]
    sys.exit("\n".join(faults) or None)


if __name__ == "__main__":
    main()
