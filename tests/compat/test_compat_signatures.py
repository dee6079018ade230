"""Every public name of PyPI's tensorizer exists here, with the same signature."""

from __future__ import annotations

import importlib
import inspect
import typing
from types import ModuleType

import pytest

# "" is the package itself.
MODULES = ["", "serialization", "stream_io", "utils", "torch_compat", "protobuf", "tensors_pb2"]

# Names that are not marked as public, but that other programs use.
RELIED_UPON = {
    "tensorizer.serialization": {"TENSORIZER_VERSION", "_get_perf_stats", "logger", "lz4"},
}

FILE = "Python's own files have it, with Python's own signature"
# Intended differences, with the reason for each.
DIFFERENT = {
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
    """Returns the names that a module defines, without those that it imports."""
    names = set(getattr(module, "__all__", ()))
    for name, value in vars(module).items():
        if name.startswith("_") or inspect.ismodule(value):
            continue
        own = getattr(value, "__module__", None) == module.__name__
        if own or isinstance(value, (str, bytes)):
            names.add(name)
    return names | RELIED_UPON.get(module.__name__, set())


Parameters = dict[str, tuple[object, object]]


def parameters(function: object) -> Parameters:
    found = inspect.signature(function).parameters.values()
    return {one.name: (one.kind, one.default) for one in found}


def without_our_own(ours: Parameters, theirs: Parameters) -> list[tuple[str, object, object]]:
    """Removes our optional keyword-only parameters, which do not count as a difference."""
    optional = {
        name
        for name, (kind, default) in ours.items()
        if name not in theirs
        and kind == inspect.Parameter.KEYWORD_ONLY
        and default is not inspect.Parameter.empty
    }
    return [(name, *how) for name, how in ours.items() if name not in optional]


def imported(package: str, name: str) -> ModuleType:
    return importlib.import_module(f"{package}.{name}" if name else package)


def differences(ours: object, theirs: object, where: str) -> list[str]:
    if where in DIFFERENT:
        return []
    if inspect.isclass(theirs):
        found = []
        for name in vars(theirs):
            if name.startswith("_") and name != "__init__":
                continue
            if f"{where}.{name}" in DIFFERENT:
                continue
            if not hasattr(ours, name):
                found.append(f"{where}.{name} is missing")
            elif not isinstance(getattr(theirs, name), property):
                found += differences(getattr(ours, name), getattr(theirs, name), f"{where}.{name}")
        return found
    if typing.get_origin(theirs) is not None:  # a type alias
        return []
    if callable(theirs):
        try:
            expected = parameters(theirs)
        except ValueError:  # a built-in function without a signature
            return []
        found = without_our_own(parameters(ours), expected)
        wanted = [(name, *how) for name, how in expected.items()]
        return [] if found == wanted else [f"{where}: {found}, {wanted}"]
    if isinstance(theirs, (str, int, bytes)) and ours != theirs:
        return [f"{where} is {ours!r}, not {theirs!r}"]
    return []


@pytest.mark.parametrize("name", MODULES)
def test_the_same_names_and_parameters(name: str) -> None:
    ours = imported("tensorizer_ops", name)
    theirs = imported("tensorizer", name)
    found = []
    for public in sorted(public_names(theirs)):
        where = f"{name}.{public}"
        if where in DIFFERENT or (not name and public in MODULES):
            continue
        if not hasattr(ours, public):
            found.append(f"{where} is missing")
        else:
            found += differences(getattr(ours, public), getattr(theirs, public), where)
    assert found == []


@pytest.mark.parametrize("name", MODULES)
def test_annotations_can_be_looked_up(name: str) -> None:
    module = imported("tensorizer_ops", name)
    for public in sorted(public_names(imported("tensorizer", name))):
        value = getattr(module, public, None)
        own = vars(value).values() if inspect.isclass(value) else [value]
        for function in filter(inspect.isfunction, own):
            typing.get_type_hints(function)


@pytest.mark.parametrize("name", MODULES)
def test_the_same_stars(name: str) -> None:
    ours = imported("tensorizer_ops", name)
    theirs = imported("tensorizer", name)
    left_out = set(getattr(theirs, "__all__", ())) - set(getattr(ours, "__all__", ()))
    # These need Google's protobuf, so our star import omits them.
    assert left_out == ({"protobuf", "tensors_pb2"} if name == "" else set())


def test_what_is_different_is_there() -> None:
    """Every entry of the table still exists in tensorizer."""
    for where in DIFFERENT:
        module, *path = where.split(".")
        value: object = imported("tensorizer", module)
        for part in path:
            value = getattr(value, part)
