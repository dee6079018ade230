"""What the ranks of a vLLM do together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist
from vllm.distributed import get_world_group

from tensorizer_ops import errors

_Value = TypeVar("_Value")


def all_succeed(work: Callable[[], object], unlike: str = "results of ranks differ") -> bool:
    """Do the same on all ranks, with the same result.

    If it fails on one, or results differ, the last one raises, and the others get False. vLLM reads
    the results of ranks in their order up to the first error, and would take what later ones have
    answered for answers to the next call.

    Args:
        work: what to do.
        unlike: what to raise if results differ.
    """
    result: object = None
    error: Exception | None = None
    try:
        result = work()
    except Exception as caught:
        error = caught
    world = get_world_group()
    outcomes = from_all((result, None if error is None else str(error)))
    failed = [text for _, text in outcomes if text is not None]
    if not failed and any(other != result for other, _ in outcomes):
        error, failed = errors.HashMismatch(unlike), [unlike]
    if failed and world.rank_in_group == world.world_size - 1:
        raise error or RuntimeError(failed[0])
    return not failed


def from_all(own: _Value) -> list[_Value]:
    """Return the values of all ranks, in their order."""
    world = get_world_group()
    values = [own] * world.world_size
    dist.all_gather_object(values, own, world.cpu_group)
    return values
