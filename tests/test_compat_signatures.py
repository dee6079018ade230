"""Every public name of PyPI's tensorizer is here as well, and is called in the same way."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import pytest

MODULES = ["stream_io", "utils"]

FILE = "Python's own files have it, with Python's own signature"
# What is different on purpose, and why.
DIFFERENT = {
    "stream_io.curl_path": "no program is started",
    **{
        f"stream_io.{kind}.{name}": FILE
        for kind in ("CURLStreamFile", "RedisStreamFile")
        for name in [
            *("close", "closed", "fileno", "read", "readable", "readinto", "readline"),
            *("seek", "seekable", "tell", "writable"),
        ]
    },
}


def public_names(module: ModuleType) -> set[str]:
    """What a module has of its own: not what it imports."""
    names = set(getattr(module, "__all__", ()))
    for name, value in vars(module).items():
        if name.startswith("_") or inspect.ismodule(value):
            continue
        if getattr(value, "__module__", None) == module.__name__ or isinstance(value, str):
            names.add(name)
    return names


def parameters(function: object) -> list[tuple[str, object, object]]:
    found = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [(one.name, one.kind, one.default) for one in found]


def differences(ours: object, theirs: object, where: str) -> list[str]:
    if where in DIFFERENT:
        return []
    if inspect.isclass(theirs):
        found = []
        for name in vars(theirs):
            if name.startswith("_") and name != "__init__":
                continue
            if not hasattr(ours, name):
                found.append(f"{where}.{name} is missing")
            elif not isinstance(getattr(theirs, name), property):
                found += differences(getattr(ours, name), getattr(theirs, name), f"{where}.{name}")
        return found
    if callable(theirs):
        try:
            expected = parameters(theirs)
        except ValueError:  # it has none that can be told
            return []
        return [] if parameters(ours) == expected else [f"{where}: {parameters(ours)}, {expected}"]
    if isinstance(theirs, (str, int)) and ours != theirs:
        return [f"{where} is {ours!r}, not {theirs!r}"]
    return []


@pytest.mark.parametrize("name", MODULES)
def test_the_same_names_and_parameters(name: str) -> None:
    ours = importlib.import_module(f"tensorizer_ops.{name}")
    theirs = importlib.import_module(f"tensorizer.{name}")
    found = []
    for public in sorted(public_names(theirs)):
        where = f"{name}.{public}"
        if where in DIFFERENT:
            continue
        if not hasattr(ours, public):
            found.append(f"{where} is missing")
        else:
            found += differences(getattr(ours, public), getattr(theirs, public), where)
    assert found == []


@pytest.mark.parametrize("name", MODULES)
def test_the_same_stars(name: str) -> None:
    ours = importlib.import_module(f"tensorizer_ops.{name}")
    theirs = importlib.import_module(f"tensorizer.{name}")
    assert set(theirs.__all__) <= set(ours.__all__)


def test_what_is_different_is_there() -> None:
    """No entry of the table has outlived its reason."""
    for where in DIFFERENT:
        module, *path = where.split(".")
        value: object = importlib.import_module(f"tensorizer.{module}")
        for part in path:
            value = getattr(value, part)
