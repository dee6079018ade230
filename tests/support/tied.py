"""Tied tensors to save, and who shares memory with whom."""

from __future__ import annotations

import torch

from support.samples import sample

SHARE = {"share": "true"}
WEIGHT = sample(torch.float32, (300, 70), 1)


def tied() -> dict[str, torch.Tensor]:
    """Returns tensors of which the names that begin with w are one, and those with h another."""
    half = sample(torch.bfloat16, (5,))
    return {
        "w": WEIGHT,
        "bias": sample(torch.int64, (9,)),
        "w.2": WEIGHT,
        "half": half,
        "w.3": WEIGHT.view(300, 70),
        "half.2": half[:],
        "last": sample(torch.float64, ()),
    }


NAMES = list(tied())
# Those that a file stores, if it shares the data of the others.
STORED = ["w", "bias", "half", "last"]


def share_memory(*tensors: torch.Tensor) -> bool:
    """Returns whether all of the tensors are over the same memory."""
    first = tensors[0]
    return all(
        tensor.untyped_storage()._cdata == first.untyped_storage()._cdata
        and tensor.data_ptr() == first.data_ptr()
        for tensor in tensors
    )


def share_nothing(*tensors: torch.Tensor) -> bool:
    """Returns whether each tensor has memory of its own."""
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)


def outputs() -> dict[str, torch.Tensor]:
    """Returns tensors to fill, none of which is tied."""
    return {name: torch.full_like(tensor, 7) for name, tensor in tied().items()}
