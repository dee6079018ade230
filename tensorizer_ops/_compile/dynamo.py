"""Registers with ``torch.compile`` what to trace in place of ops that it cannot trace itself.

Registers when the program imports ``torch._dynamo``, because importing it here would take a second.
The table that it writes to is private to torch. If a version of torch has a different table, these
ops break the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorizer_ops._base.import_hook import when_imported
from tensorizer_ops._compile import traced

OPS = (
    "load",
    "load_tensors",
    "load_slices",
    "load_into",
    "save",
    "save_tensors",
    "names",
    "verify",
)


def _register() -> None:
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    handlers = TorchInGraphFunctionVariable._get_handlers()
    for name in OPS:
        op = getattr(torch.ops.tensorizer, name)
        handlers[op] = handlers[op.default] = _inliner(VariableTracker, getattr(traced, name))
    for constant in (traced.names_now, traced.seen_now, traced.refuse_secrets):
        torch.compiler.assume_constant_result(constant)


def _inliner(tracker: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    def handle(_: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if tx.f_code is function.__code__:
            return None  # the op call inside the inlined function: it goes into the graph itself
        # Dynamo does not notice a dict that has got more keys unless something has read them all.
        for name in ("options", "metadata"):
            if name in kwargs:
                copy = tracker.build(tx, traced.plain)
                kwargs[name] = copy.call_function(tx, [kwargs[name]], {})
        return tracker.build(tx, function).call_function(tx, list(args), kwargs)

    return handle


def _register_where_possible() -> None:
    try:
        _register()
    except (ImportError, AttributeError, TypeError):
        for name in OPS:
            op = getattr(torch.ops.tensorizer, name)
            for function in (op, op.default):
                torch._dynamo.disallow_in_graph(function)


def register_with_dynamo() -> None:
    when_imported("torch._dynamo", _register_where_possible)
