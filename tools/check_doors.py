"""Checks that what only one file of a language may ask for is asked for there.

Comments and strings count, so that nothing hides in them.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Door:
    request: re.Pattern[str]
    suffixes: set[str]
    allowed: dict[str, str]  # files, and why
    advice: str

    def requests(self, text: str) -> list[tuple[int, str]]:
        """Return the line and the text of each request."""
        found = self.request.finditer(text)
        return [(text.count("\n", 0, each.start()) + 1, each[0]) for each in found]

    def faults(self) -> list[str]:
        faults = []
        left = set(self.allowed)
        for folder in ("csrc", "tensorizer_ops"):
            for path in sorted((ROOT / folder).rglob("*")):
                if path.suffix not in self.suffixes:
                    continue
                name = path.relative_to(ROOT).as_posix()
                found = self.requests(path.read_text())
                if found and name in self.allowed:
                    left.remove(name)
                    continue
                faults += [f"{name}:{line}: {what} {self.advice}" for line, what in found]
        unused = [f"{name} asks for nothing of this: take it out of allowed" for name in left]
        return faults + sorted(unused)


# Many kinds of tensors have no memory, or none of their own: a pointer into what they give is null,
# or to other bytes. The two files ask for all others, and refuse such tensors.
MEMORY = Door(
    re.compile(
        r"\b(?:\w*_)?(?:data_ptr(?:_\w+)?|data_address|(?:un)?typed_storage)\b"
        r"|\b(?:unsafeGetStorageImpl|StorageImpl|(?:mutable|const)_data)\b"
        r"|\b(?:packed_)?accessor(?:32|64)?\b|(?:\.|->)\s*(?:unsafe_)?storage\s*\("
    ),
    {".h", ".cpp", ".cu", ".py"},
    {
        "csrc/transfer/memory/memory.cpp": "the one file for C++",
        "csrc/transfer/memory/held_memory.cpp": "holds storages, whatever is in them",
        "csrc/transfer/device/cuda_library.cpp": "a kernel, whose arguments staging has made",
        "tensorizer_ops/_base/memory.py": "the one file for Python",
        "tensorizer_ops/_front/weight.py": "lists methods that a tensor of its class refuses",
    },
    "may be null or of something else: use transfer/memory or _base/memory.py",
)

# A test that simulates time and chance sets the world of base/world.h.
WORLD = Door(
    re.compile(
        r"\b(?:steady_clock|system_clock::now|high_resolution_clock|clock_gettime|gettimeofday)\b"
        r"|\bstd::time\s*\(|\bthis_thread::sleep_\w+|\b(?:u|nano)sleep\s*\(|\brandom_device\b"
    ),
    {".h", ".cpp"},
    {"csrc/base/world.cpp": "the one file"},
    "is not in the hands of a test: use base/world.h",
)

# A server may repeat a secret that was sent to it, also in a file.
QUOTES = Door(
    re.compile(r"!r:\."),
    {".py"},
    {},
    "cuts what may be a secret, and shows its beginning: use quoted() of _base/quoting.py",
)


def main() -> None:
    faults = [fault for door in (MEMORY, WORLD, QUOTES) for fault in door.faults()]
    sys.exit("\n".join(f"{fault} (tools/check_doors.py)" for fault in faults) or None)


if __name__ == "__main__":
    main()
