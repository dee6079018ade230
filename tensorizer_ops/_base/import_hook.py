"""Calls a function once a module has been imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module through the finders after it, and calls ``call`` once it has executed."""

    def __init__(self, module: str, call: Callable[[], None]) -> None:
        self._module = module
        self._call = call

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        spec = self._find_behind(name, path, target)
        # A search may not lead to an import, and a failed import may be retried. So the finder
        # stays in sys.meta_path until the module has executed.
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
    """Call ``call`` once ``module`` has been imported: now, if it is already imported.

    ``call`` runs inside the import, on the importing thread. An exception that it raises propagates
    out of the import.
    """
    if module in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Finder(module, call))
