"""Calls back when a module has been imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module by the finders behind it, and calls back when that has been executed."""

    def __init__(self, module: str, call: Callable[[], None]) -> None:
        self._module = module
        self._call = call

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        spec = self._find_behind(name, path, target)
        # A search does not import, and an import may fail and be tried again: so the finder stays
        # until the module has been executed.
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._call()

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec

    def _find_behind(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        finders = list(sys.meta_path)
        behind = finders[finders.index(self) + 1 :] if self in finders else []
        for finder in behind:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None


def when_imported(module: str, call: Callable[[], None]) -> None:
    """Call ``call`` once, when ``module`` has been imported: now, if it is imported already.

    It runs on the thread that imports the module, before that thread goes on; what it raises leaves
    the import.
    """
    if module in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Finder(module, call))
