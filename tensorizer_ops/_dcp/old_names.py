"""Names and orders of arguments that ``tensorizer_ops.checkpoint`` had before, for one release.

To end it, delete this file, ``takes_old_order`` and ``old_name`` in ``checkpoint.py``, and
``tests/distributed/test_old_checkpoints.py``.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# Old names, and the functions with what they pass that have replaced them.
_RENAMED = {
    "save_checkpoint": ("save", {"group": False}),
    "save_checkpoint_async": ("save_async", {"group": False}),
    "load_checkpoint": ("load", {}),
}
# The arguments that only torch's order has.
_OF_TORCH = {
    *("state_dict", "checkpoint_id", "storage_writer", "storage_reader", "planner"),
    *("process_group", "async_stager", "no_dist"),
}
_OR_TORCH = ", or torch's function with TensorizerStorageWriter and JsonSavePlanner"


def old_name(name: str, functions: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return what an old name stands for, with a warning; ``None`` for any other name."""
    if name == "async_save":
        return _async_save
    if name not in _RENAMED:
        return None
    new, keywords = _RENAMED[name]
    more = "".join(f", {key}={value}" for key, value in keywords.items())
    state = "" if new == "load" else ", state"
    _warn(name, f"{new}(uri{state}{more})", 4)
    return functools.partial(functions[new], **keywords)


def takes_old_order(
    function: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Let ``save`` and ``load`` take a state, and then where it is as torch's functions do."""
    name = function.__name__

    @functools.wraps(function)
    def call(*given: Any, **keywords: Any) -> Any:
        if not keywords.keys() & _OF_TORCH:
            return function(*given, **keywords)
        _warn(f"{name}(state, checkpoint_id=uri)", f"{name}(uri, state)" + _OR_TORCH, 3)
        return (_save if name == "save" else _load)(*given, **keywords)

    return call


def _warn(old: str, new: str, level: int) -> None:
    warnings.warn(
        f"tensorizer_ops.checkpoint.{old} will be removed: call checkpoint.{new}",
        DeprecationWarning,
        stacklevel=level,
    )


def _save(state_dict: Mapping[str, Any], **more: Any) -> Any:
    return _saved_by("save", state_dict, **more)


def _async_save(state_dict: Mapping[str, Any], **more: Any) -> Any:
    _warn("async_save(state, checkpoint_id=uri)", "save_async(uri, state)" + _OR_TORCH, 3)
    return _saved_by("async_save", state_dict, **more)


def _saved_by(
    function: str,
    state_dict: Mapping[str, Any],
    *,
    checkpoint_id: Any = None,
    storage_writer: Any = None,
    planner: Any = None,
    **more: Any,
) -> Any:
    from torch.distributed.checkpoint import state_dict_saver

    from tensorizer_ops._dcp.planners import JsonSavePlanner
    from tensorizer_ops._dcp.storage import TensorizerStorageWriter

    return getattr(state_dict_saver, function)(
        dict(state_dict),
        checkpoint_id=checkpoint_id,
        storage_writer=_placed(storage_writer or TensorizerStorageWriter(), checkpoint_id),
        planner=planner or JsonSavePlanner(),
        **more,
    )


def _load(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: Any = None,
    storage_reader: Any = None,
    planner: Any = None,
    **more: Any,
) -> None:
    from torch.distributed.checkpoint import state_dict_loader

    from tensorizer_ops._dcp.planners import JsonLoadPlanner
    from tensorizer_ops._dcp.storage import TensorizerStorageReader

    state_dict_loader.load(
        state_dict,
        checkpoint_id=checkpoint_id,
        storage_reader=_placed(storage_reader or TensorizerStorageReader(), checkpoint_id),
        planner=planner or JsonLoadPlanner(),
        **more,
    )


def _placed(storage: Any, checkpoint_id: Any) -> Any:
    """Return a storage; raise here, and not on each rank of torch, if it lacks a place."""
    if hasattr(storage, "place_of"):  # one of ours
        storage.place_of(checkpoint_id)
    return storage
