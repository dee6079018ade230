"""Writes the signatures in docs/reference.md, a line for each public name of Python.

    python tools/signatures.py [--check]

The page decides the order. A name that it lacks, or has too much, is an error. With --check, so is
a signature that has changed.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef, is_typeddict

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"
NAME = re.compile(r"^- `(?:class )?(\w+)")


class Written(str):
    """An annotation as the source has it: a signature shows its repr()."""

    __slots__ = ()
    __repr__ = str.__str__


def annotation(given: Any) -> Any:
    if given in (inspect.Signature.empty, "None", None):
        return inspect.Signature.empty
    given = given.__forward_arg__ if isinstance(given, ForwardRef) else given
    return Written(given if isinstance(given, str) else inspect.formatannotation(given))


def signature(function: Any) -> str:
    found = inspect.signature(function)
    parameters = [
        each.replace(annotation=annotation(each.annotation))
        for each in found.parameters.values()
        if each.name not in ("self", "cls")
    ]
    result = annotation(found.return_annotation)
    return str(found.replace(parameters=parameters, return_annotation=result))


def members(kind: type) -> Iterator[str]:
    for name, value in vars(kind).items():
        value = getattr(value, "__func__", value)
        if name.startswith("_"):
            continue
        if inspect.isfunction(value):
            yield f"  - `{name}{signature(value)}`"
        elif isinstance(value, property):
            result = annotation(inspect.signature(value.fget).return_annotation)  # type: ignore[arg-type]
            yield f"  - `{name}: {result}`"


def undocumented(function: Any) -> list[str]:
    """Return the arguments that a docstring does not explain, unless it refers to another."""
    doc = inspect.getdoc(function) or ""
    as_in_safetensors = function.__module__.startswith("tensorizer_ops.safetensors")
    if ":func:" in doc or as_in_safetensors:
        return []
    return [n for n in inspect.signature(function).parameters if not re.search(rf"\b{n}\b", doc)]


def lines(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value) and issubclass(value, BaseException):
        yield f"- `class {name}({', '.join(base.__qualname__ for base in value.__bases__)})`"
    elif inspect.isclass(value) and not is_typeddict(value) and not issubclass(value, Enum):
        yield f"- `class {name}{signature(value)}`"
        yield from members(value)
    elif inspect.isfunction(value):
        yield f"- `{name}{signature(value)}`"
    else:
        yield f"- `{name}`"


def public(module: ModuleType) -> set[str]:
    """Return the names of a module, but for those of other modules and of the version."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    return {name for name in names if not isinstance(getattr(module, name), ModuleType | str)}


def entries(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield each line that is not of a member, with its module, and the name that it is of."""
    module = "tensorizer_ops"
    for line in page.splitlines():
        if line.startswith("## "):
            module = line[3:] if line.startswith("## tensorizer_ops.") else "tensorizer_ops"
        if not line.startswith("  - "):
            found = NAME.match(line)
            yield line, module, found[1] if found else ""


def written(page: str) -> str:
    """Return the page with the signatures as they are now."""
    shown: dict[ModuleType, set[str]] = {}
    result = []
    for line, path, name in entries(page):
        if not name:
            result.append(line)
            continue
        module = importlib.import_module(path)
        shown.setdefault(module, set()).add(name)
        value = getattr(module, name)
        result += lines(name, value)
        if inspect.isfunction(value) and (missing := undocumented(value)):
            sys.exit(f"the docstring of {name} does not say what {missing} are")
    for module, names in shown.items():
        if wrong := names ^ public(module):
            sys.exit(f"{PAGE.name} lacks, or has too much of {module.__name__}: {sorted(wrong)}")
    return "\n".join(result) + "\n"


def main() -> None:
    page = PAGE.read_text()
    now = written(page)
    if "--check" not in sys.argv:
        PAGE.write_text(now)
    elif page != now:
        sys.exit(f"{PAGE.name} has other signatures: run python tools/signatures.py")


if __name__ == "__main__":
    main()
