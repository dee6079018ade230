"""Classes that pickles of earlier versions know by other names."""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any

# The modules that had them, and where they are now.
MOVED = {
    "tensorizer_ops._inspection": dict.fromkeys(
        ("Info", "StoredTensor"), "tensorizer_ops._front.info"
    ),
    "tensorizer_ops._reader": dict.fromkeys(
        ("Reader", "_Defaults"), "tensorizer_ops._front.reader"
    ),
}


def _moved(old: str, name: str) -> Any:
    if name not in MOVED[old]:
        raise AttributeError(f"module {old!r} has no attribute {name!r}")
    return getattr(importlib.import_module(MOVED[old][name]), name)


def keep() -> None:
    """Let the old modules exist; what a pickle needs is imported then."""
    for old in MOVED:
        module = ModuleType(old)
        module.__getattr__ = functools.partial(_moved, old)  # type: ignore[method-assign]
        sys.modules[old] = module
