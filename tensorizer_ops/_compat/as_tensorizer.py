"""Makes this package importable as ``tensorizer``, for code that cannot be changed.

With ``FOLDER`` first on ``sys.path``, ``import tensorizer`` imports an alias of this package:
``tensorizer.x`` and ``tensorizer_ops.x`` are the same module, with the same objects in it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, spec_from_file_location, spec_from_loader
from types import ModuleType
from typing import Any

_OURS = "tensorizer_ops"
_NAME = "tensorizer"

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "alias")

# The modules that `from tensorizer import *` imports, besides the names of `serialization`.
_STAR = ("stream_io", "torch_compat", "utils")
_STAR_WITH_PROTOBUF = ("protobuf", "tensors_pb2")


def install_as_tensorizer() -> None:
    """Make ``import tensorizer`` import this package, in this process and in its child processes.

    Another package installed under that name is not removed, but is no longer found.

    Raises:
        RuntimeError: another ``tensorizer`` has already been imported.
    """
    imported = sys.modules.get(_NAME)
    if imported is not None and not isinstance(imported, _Tensorizer):
        raise RuntimeError(
            f"another tensorizer has been imported already ({imported!r}): call "
            f"{_OURS}.install_as_tensorizer() before anything imports it"
        )
    sys.path[:] = _with_folder(sys.path)
    inherited = os.environ.get("PYTHONPATH")
    paths = inherited.split(os.pathsep) if inherited else []
    os.environ["PYTHONPATH"] = os.pathsep.join(_with_folder(paths))
    importlib.import_module(_NAME)


def _with_folder(paths: list[str]) -> list[str]:
    return [FOLDER, *(path for path in paths if path != FOLDER)]


def become_tensorizer() -> None:
    """Replace the ``tensorizer`` in ``FOLDER`` by the alias; it calls this when imported."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    sys.modules[_NAME] = _Tensorizer(sys.modules[_OURS])


class _Tensorizer(ModuleType):
    """The package ``tensorizer``. Attributes are read from and written to ``tensorizer_ops``.

    Only its module attributes are its own, among them its name, its version and ``__all__``.
    """

    def __init__(self, ours: ModuleType) -> None:
        super().__init__(_NAME, ours.__doc__)
        assert ours.__file__ is not None
        loader = SourceFileLoader(_NAME, ours.__file__)
        protobuf = _STAR_WITH_PROTOBUF if _has_protobuf() else ()
        version = importlib.import_module(f"{_OURS}._version")
        serialization = importlib.import_module(f"{_OURS}.serialization")
        vars(self).update(
            __spec__=spec_from_file_location(_NAME, ours.__file__, loader=loader),
            __loader__=loader,
            __package__=_NAME,
            __file__=ours.__file__,
            __path__=ours.__path__,
            __version__=version.__version__,
            __all__=[*serialization.__all__, *_STAR, *protobuf],
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(sys.modules[_OURS], name)
        except AttributeError:
            raise AttributeError(f"module {_NAME!r} has no attribute {name!r}") from None

    def __setattr__(self, name: str, value: object) -> None:
        if name in vars(self):
            super().__setattr__(name, value)
        else:
            setattr(sys.modules[_OURS], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(sys.modules[_OURS], name)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *dir(sys.modules[_OURS])})


def _has_protobuf() -> bool:
    try:
        return find_spec("google.protobuf") is not None
    except ModuleNotFoundError:  # no package "google" is installed
        return False


class _Finder(MetaPathFinder, Loader):
    """Maps ``tensorizer.x`` to the module ``tensorizer_ops.x``; other finders would load a copy."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(f"{_NAME}."):
            return None
        found = find_spec(_OURS + name.removeprefix(_NAME))
        return found and spec_from_loader(name, self, origin=found.origin)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_OURS + spec.name.removeprefix(_NAME))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The module has already executed. Only restore its spec, which the import replaced.
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


_finder = _Finder()
