"""Checks includes between the layers of csrc against the table below, which docs/design.md draws.

Every edge that is used must be allowed, and every edge that is allowed must be used, so that the
table shows the actual dependencies. Neither layers nor files may form a cycle.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from edges import faults_of

ROOT = Path(__file__).resolve().parent.parent / "csrc"

# The public headers. Every layer may include those without torch.
PUBLIC = "include/tensorizer_ops"

# A folder of csrc, and the folders that it may include.
ALLOWED = {
    PUBLIC: [],
    "base": [],
    "codec": ["base"],
    "cuda": [],
    "format": ["base", "codec"],
    "trust": ["base", "codec"],
    "format/tensors": ["base", "codec", "format"],
    "format/safetensors": ["base", "codec", "format"],
    "io": ["base", "codec"],
    "io/local": ["base", "io"],
    "io/http": ["base", "codec", "io"],
    "io/upload": ["base", "io"],
    "io/aws": ["base", "codec", "io", "io/local", "io/http"],
    "io/s3": ["base", "codec", "io", "io/http", "io/upload", "io/aws"],
    "io/azure": ["base", "codec", "io", "io/http", "io/upload"],
    "io/redis": ["base", "io"],
    "io/hub": ["base", "codec", "io", "io/http"],
    "io/node": ["base", "codec", "io"],
    "io/signed": ["base", "codec", "io", "trust"],
    "io/places": [
        *("base", "io", "io/local", "io/http", "io/s3", "io/azure", "io/hub", "io/redis"),
        *("io/node", "io/signed"),
    ],
    "engine": ["base", "codec", "format", "io", "io/places"],
    "engine/digest": ["base", "codec", "format", "io"],
    "engine/move": ["base", "codec", "format", "io"],
    "engine/load": ["base", "format", "io", "engine", "engine/digest", "engine/move"],
    "engine/open": [
        *("base", "codec", "format", "format/tensors", "format/safetensors", "io", "io/places"),
        *("io/signed", "engine", "engine/digest", "engine/move", "engine/load"),
    ],
    "engine/save": [
        *("base", "codec", "format", "format/tensors", "format/safetensors", "io", "io/places"),
        *("engine", "engine/digest", "engine/move", "engine/open"),
    ],
    "engine/rewrite": [
        *("base", "codec", "format", "trust", "io", "io/places", "io/signed"),
        *("engine", "engine/digest", "engine/move", "engine/load", "engine/open", "engine/save"),
    ],
    "engine/delta": [
        *("base", "codec", "format", "engine/digest", "engine/move", "engine/load"),
        *("engine/open", "engine/rewrite"),
    ],
    "transfer/memory": ["base", "format", "io"],
    "transfer/device": ["base", "cuda", "engine/move", "transfer/memory"],
    "transfer/files": [
        *("base", "format", "io", "io/places"),
        *("engine", "engine/digest", "engine/move", "engine/load"),
        *("engine/open", "engine/rewrite", "engine/save", "engine/delta"),
        *("transfer/memory", "transfer/device"),
    ],
    "ops": [
        *("base", "codec", "io", "engine", "engine/digest"),
        *("transfer/memory", "transfer/device", "transfer/files"),
    ],
    "python": [
        *("base", "codec", "format/safetensors", "io", "io/places", "io/aws", "io/signed"),
        *("engine", "engine/open", "engine/rewrite", "engine/save"),
    ],
    "api": ["transfer/files"],
}
WITH_TORCH = {
    *(PUBLIC, "transfer/memory", "transfer/device", "transfer/files"),
    *("api", "ops"),
}
WITH_PYTHON = {"python"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
# Headers of torch that include Python.h count as Python.
PYTHON = re.compile(
    r"Python\.h$|(pybind11|nanobind)/|torch/(extension|python)\.h$"
    r"|torch/csrc/(Exceptions\.h|python_|utils/(pybind|object_ptr|python_))"
)


def includes(name: str) -> list[tuple[str, str]]:
    """Return bracket and path of each include of a file; public headers as paths in csrc."""
    return [
        (bracket, f"include/{header}" if header.startswith("tensorizer_ops/") else header)
        for bracket, header in INCLUDE.findall((ROOT / name).read_text())
    ]


def needs_torch(public: str) -> bool:
    """Return whether a public header includes torch, directly or indirectly."""
    return any(
        TORCH.match(header) or (header.startswith(PUBLIC) and needs_torch(header))
        for _, header in includes(public)
    )


def layer_of(name: str) -> str:
    """Return the layer (the folder) of a file, given by its path in csrc."""
    return name.rpartition("/")[0]


def needs(name: str, faults: list[str]) -> set[str]:
    """Return the files that a file includes; add to ``faults`` what no table allows."""
    layer = layer_of(name)
    found = set()
    for bracket, header in includes(name):
        ours = bracket == '"' or (ROOT / header).is_file()
        if PYTHON.match(header):
            if layer not in WITH_PYTHON:
                faults.append(f"{name} includes {header}; only csrc/python may include Python")
        elif TORCH.match(header) or (layer_of(header) == PUBLIC and needs_torch(header)):
            if layer not in WITH_TORCH:
                faults.append(f"{name} includes {header}; {layer} must not depend on torch")
        elif ours and not (ROOT / header).is_file():
            faults.append(f"{name} includes {header}, which is not in csrc")
        if (ROOT / header).is_file():
            found.add(header)
    return found


def main() -> str:
    names = sorted(
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*")
        if path.suffix in {".h", ".cpp", ".cu"}
    )
    faults: list[str] = []
    files = {name: needs(name, faults) for name in names}
    return "\n".join(faults + faults_of(files, ALLOWED, layer_of, everywhere=(PUBLIC,)))


if __name__ == "__main__":
    sys.exit(main() or None)
