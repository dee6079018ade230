"""What the ranks of a job do together."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist

from tensorizer_ops import errors

_Result = TypeVar("_Result")


class Outcome(NamedTuple):
    """What a call of one rank has returned or raised."""

    value: Any = None
    error: Exception | None = None


class Together:
    """The ranks of a group, or one process alone."""

    def __init__(self, group: dist.ProcessGroup | None, are_alone: bool) -> None:
        self.group = group
        self.are_alone = are_alone
        self.rank = 0 if are_alone else dist.get_rank(group)
        self.size = 1 if are_alone else dist.get_world_size(group)

    @property
    def share(self) -> tuple[int, int]:
        """Which part of what the ranks share this one has: its number, and of how many."""
        return self.rank, self.size

    def each(self, call: Callable[[], object]) -> list[Outcome]:
        """Make a call on every rank, and return the outcomes of all."""
        own = _outcome(call)
        if self.are_alone:
            return [own]
        outcomes: list[Any] = [None] * self.size
        dist.all_gather_object(outcomes, own, self.group)
        return outcomes

    def same(self, call: Callable[[], object], unlike: str) -> None:
        """Make a call on every rank; raise the error of the first that fails, or if they differ."""
        outcomes = self.each(call)
        for _, error in outcomes:
            if error is not None:
                raise error
        if any(outcome.value != outcomes[0].value for outcome in outcomes):
            raise errors.HashMismatch(unlike)

    def first(self, call: Callable[[], _Result]) -> _Result:
        """Make a call on the first rank, and return its result, or raise its error, on all."""
        value, error = self.each(call if self.rank == 0 else lambda: None)[0]
        if error is not None:
            raise error
        result: _Result = value
        return result


def is_alone(group: object) -> bool:
    """Return whether a group, as a caller gives it, means this process alone."""
    return group is False or (group is None and not (dist.is_available() and dist.is_initialized()))


def given_group(group: object) -> Any:
    """Return the group that a caller means; ``None`` is the group of all ranks there are."""
    # Importing torch's meshes takes long.
    meshes = import_module("tensorizer_ops._distributed.meshes")
    return meshes.given_group(group, "ProcessGroup, DeviceMesh, False or None")


def together(group: object) -> Together:
    """Return the ranks that a caller means."""
    if is_alone(group):
        return Together(None, True)
    return Together(given_group(group), False)


def same_after(call: Callable[[], tuple[_Result, object]], group: object, unlike: str) -> _Result:
    """Make a call, which may initialise torch.distributed, and then be as :meth:`Together.same`.

    The call returns its result, and what must be the same on all ranks.
    """
    own = _outcome(call)

    def said() -> object:
        if own.error is not None:
            raise own.error
        return own.value[1]

    together(group).same(said, unlike)
    result: _Result = own.value[0]
    return result


def _outcome(call: Callable[[], object]) -> Outcome:
    try:
        return Outcome(call())
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return Outcome(error=errors.Error(f"{type(error).__name__}: {error}"))
        return Outcome(error=error)
