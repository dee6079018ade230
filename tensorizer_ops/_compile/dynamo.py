"""Tells ``torch.compile`` what to trace in place of the ops that it cannot trace itself.

It does so when somebody imports ``torch._dynamo``, which takes a second and is nobody's wish here.
The table that it writes into is private to torch. Where a torch has another one, the ops in
question break the graph, as any op with such arguments does, and ``tensorizer_ops.load`` and
``save`` still do not.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from tensorizer_ops import _python
from tensorizer_ops._compile import traced
from tensorizer_ops._options import as_pairs

_MODULE = "torch._dynamo"


def _register() -> None:
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    handlers = TorchInGraphFunctionVariable._get_handlers()
    for name in ("load", "load_tensors", "save", "names"):
        op = getattr(torch.ops.tensorizer, name)
        inline = _inliner(VariableTracker, getattr(traced, name))
        handlers[op] = handlers[op.default] = inline
    for name in ("load_into", "save_tensors", "verify"):
        op = getattr(torch.ops.tensorizer, name)
        handlers[op] = handlers[op.default] = _refuse_secrets
    for constant in (traced.names_now, traced.shapes_now):
        torch.compiler.assume_constant_result(constant)


def _inliner(tracker: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    def handle(_: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if "traced" in kwargs:
            return None  # the call that is left of an inlined one goes into the graph
        return tracker.build(tx, function).call_function(tx, list(args), kwargs)

    return handle


def _refuse_secrets(_: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
    """Refuses secrets before the call stands in the graph: Dynamo prints one that fails there."""
    uri = args[0] if args else kwargs["uri"]
    options = kwargs["options"].as_python_constant() if "options" in kwargs else None
    _python.refuse_traced_secrets(uri.as_python_constant(), as_pairs(options))


def _register_where_possible() -> None:
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        _register()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself; has the module that others find call back when it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                # Not when it is found: who only asks whether there is one does not import it.
                with contextlib.suppress(ValueError):
                    sys.meta_path.remove(self)
                execute(module)
                _register_where_possible()

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def register_with_dynamo() -> None:
    if _MODULE in sys.modules:
        _register_where_possible()
    else:
        sys.meta_path.insert(0, _Finder())
