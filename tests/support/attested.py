"""Tensors, modules and loaders that `attest` is tried with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def flip(tensor: torch.Tensor, place: int) -> None:
    """Change one bit."""
    tensor.data.view(-1).view(torch.uint8)[place] ^= 4


class Halved(torch.Tensor):
    """Has memory of its own, and is read and written as the half of what is there."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def half(tensor: torch.Tensor) -> torch.Tensor:
            return plain(tensor) * 0.5 if isinstance(tensor, cls) else tensor

        if func is torch.ops.aten.copy_.default and isinstance(args[0], cls):
            return plain(args[0]).copy_(args[1] * 0.5)
        return func(*map(half, args), **(kwargs or {}))


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0).set_(tensor.untyped_storage(), 0, tensor.shape, tensor.stride())


def halved(tensor: torch.Tensor) -> torch.Tensor:
    return torch.Tensor._make_subclass(Halved, tensor)


def with_(tensor: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        setattr(tensor, name, value)
    return tensor


def of_file(weights: Iterator[tuple[str, torch.Tensor]], name: str = "a") -> torch.Tensor:
    return dict(weights)[name]
