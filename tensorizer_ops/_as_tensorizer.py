"""This package under the name ``tensorizer``, for code that cannot be changed.

Whoever has ``FOLDER`` first on the path imports from there a ``tensorizer`` that is this very
package: ``tensorizer.x`` and ``tensorizer_ops.x`` are one module.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import ModuleType

_OURS = __package__
_NAME = "tensorizer"

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_alias")


def install_as_tensorizer() -> None:
    """Make ``import tensorizer`` mean this package, here and in processes that are started here.

    Whatever else is installed under that name stays, and is not found any more.

    Raises:
        RuntimeError: another ``tensorizer`` has been imported already.
    """
    imported = sys.modules.get(_NAME)
    if imported not in (None, sys.modules[_OURS]):
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
    """What the ``tensorizer`` in ``FOLDER`` does when it is imported."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    sys.modules[_NAME] = sys.modules[_OURS]


class _Finder(MetaPathFinder, Loader):
    """Finds for ``tensorizer.x`` the module ``tensorizer_ops.x``, which others would load anew."""

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
        # It has run, and only lost what it was found by.
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


_finder = _Finder()
