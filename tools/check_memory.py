"""Checks that only one file of each language asks torch for the memory of a tensor.

Many kinds of tensors have no memory, or none of their own: a pointer into what they give is null,
or to other bytes. ``csrc/transfer/memory`` and ``tensorizer_ops/_base/memory.py`` ask for all
others, and refuse such tensors.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Files that ask for memory, and why.
ALLOWED = {
    "csrc/transfer/memory/memory.cpp": "the one file for C++",
    "csrc/transfer/memory/held_memory.cpp": "holds storages, whatever is in them",
    "csrc/transfer/device/cuda_library.cpp": "a kernel, whose arguments staging has made",
    "tensorizer_ops/_base/memory.py": "the one file for Python",
}

CPP = re.compile(
    r"\b((?:\w+_)?data_ptr(?:_\w+)?|unsafeGetStorageImpl|StorageImpl|(?:\w+_)?untyped_storage"
    r"|(?:mutable|const)_data|(?:packed_)?accessor(?:32|64)?)\b"
    r"|(?:\.|->)\s*((?:unsafe_)?storage)\s*\("
)
PYTHON = re.compile(r"(?:\w+_)?data_ptr|_?(?:un)?typed_storage|_data_address")
# Comments, strings and characters. The quote in 1'000 is no such.
NO_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<!\w)'(?:\\.[^'\n]*|[^'\\\n])'", re.DOTALL
)


def in_cpp(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each request for memory in C++."""
    code = NO_CODE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for match in CPP.finditer(code):
        yield code.count("\n", 0, match.start()) + 1, match[1] or match[2]


def in_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each request for memory in Python."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and PYTHON.fullmatch(node.attr):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr == "storage":
                yield node.lineno, called.attr
            elif isinstance(called, ast.Name) and called.id == "getattr":
                for each in node.args[1:2]:
                    if isinstance(each, ast.Constant) and PYTHON.fullmatch(str(each.value)):
                        yield node.lineno, str(each.value)


def main() -> None:
    faults = []
    for folder, suffixes, requests in (
        ("csrc", {".h", ".cpp", ".cu", ".cuh"}, in_cpp),
        ("tensorizer_ops", {".py"}, in_python),
    ):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in suffixes:
                continue
            name = path.relative_to(ROOT).as_posix()
            found = list(requests(path.read_text()))
            if name in ALLOWED:
                if not found:
                    faults.append(f"{name} no longer asks for memory: take it out of ALLOWED")
                continue
            faults += [
                f"{name}:{line}: {what} may be null or of something else: use transfer/memory or "
                "_base/memory.py (tools/check_memory.py)"
                for line, what in found
            ]
    for name in ALLOWED:
        if not (ROOT / name).is_file():
            faults.append(f"{name} is in ALLOWED of tools/check_memory.py, and does not exist")
    sys.exit("\n".join(faults) or None)


if __name__ == "__main__":
    main()
