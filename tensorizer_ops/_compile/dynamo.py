"""Registers with ``torch.compile`` what to trace in place of ops that it cannot trace itself.

Registers when the program imports ``torch._dynamo``, because importing it here would take a second.
The table that it writes to is private to torch. If a version of torch has a different table, these
ops break the graph, as any op with such arguments does; ``tensorizer_ops.load`` and ``save`` still
do not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from tensorizer_ops import _core
from tensorizer_ops._base.import_hook import when_imported
from tensorizer_ops._base.options import as_pairs
from tensorizer_ops._compile import traced


def _register() -> None:
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    handlers = TorchInGraphFunctionVariable._get_handlers()
    for name in ("load", "load_tensors", "load_slices", "save", "names"):
        op = getattr(torch.ops.tensorizer, name)
        inline = _inliner(VariableTracker, getattr(traced, name))
        handlers[op] = handlers[op.default] = inline
    for name, refuse in (
        ("load_into", _refuse_secrets),
        ("save_tensors", _refuse_secrets_and_subclasses),
        ("verify", _refuse_secrets),
    ):
        op = getattr(torch.ops.tensorizer, name)
        handlers[op] = handlers[op.default] = refuse
    for constant in (traced.names_now, traced.shapes_now, traced.slices_now):
        torch.compiler.assume_constant_result(constant)


def _inliner(tracker: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    def handle(_: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if "traced" in kwargs:
            return None  # the op call inside an inlined function: it goes into the graph itself
        return tracker.build(tx, function).call_function(tx, list(args), kwargs)

    return handle


def _refuse_secrets(_: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
    """Refuse secrets before the call enters the graph: Dynamo prints a call that fails there."""
    uri = args[0] if args else kwargs["uri"]
    options = kwargs["options"].as_python_constant() if "options" in kwargs else None
    _core.refuse_traced_secrets(uri.as_python_constant(), as_pairs(options))


def _refuse_secrets_and_subclasses(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
    _refuse_secrets(self, tx, *args, **kwargs)
    names = args[1] if len(args) > 1 else kwargs["names"]
    tensors = args[2] if len(args) > 2 else kwargs["tensors"]
    traced.refuse_subclasses(
        names.as_python_constant(),
        (each.as_proxy().node.meta["example_value"] for each in tensors.unpack_var_sequence(tx)),
    )


def _register_where_possible() -> None:
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        _register()


def register_with_dynamo() -> None:
    when_imported("torch._dynamo", _register_where_possible)
