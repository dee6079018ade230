"""Loads the shards that this rank has of tensors on a device mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tensorizer_ops._base.slices import of_boxes
from tensorizer_ops._distributed.gather import synchronize
from tensorizer_ops._distributed.placed import Placed


def load_shards(
    reader: Any,
    placed: Mapping[str, Placed],
    device: torch.device,
    dtype: torch.dtype | None,
    verify: str,
    threads: int,
) -> dict[str, torch.Tensor]:
    """Load the slices of all tensors at once, and put them together. Sends nothing."""
    slices = [each for one in placed.values() for each in one.slices]
    sliced = of_boxes((each.starts, each.lengths) for each in slices)
    names = [each.name for each in slices]
    loaded = reader.load_slices(names, *sliced[:5], device, dtype, verify, False, threads)
    loaded.reverse()
    result = {}
    for name, one in placed.items():
        # pop() lets go of the slices once they are joined, so that few are in memory twice.
        own = [loaded.pop() for _ in one.slices]
        result[name] = one.join(own)
    synchronize(device)
    return result
