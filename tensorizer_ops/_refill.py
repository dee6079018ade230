"""Gives a tensor other memory and keeps the object, where torch can."""

from __future__ import annotations

import torch

from tensorizer_ops._memory import plain_storage


def refill(old: torch.Tensor, value: torch.nn.Parameter) -> torch.Tensor:
    """The same object with other memory, where it can be; otherwise what stands in for it."""
    # Torch changes the memory of no tensor that was made for inference.
    if plain_storage(old) is None or old.is_inference():
        return successor(old, value)
    if old.requires_grad and not value.requires_grad:
        old.requires_grad_(False)
    old.data = value.data
    grad = old.grad if old.is_leaf else None
    # Torch itself takes no gradient of another type or device.
    if grad is not None and (grad.dtype, grad.device) != (old.dtype, old.device):
        old.grad = None
    return old


def successor(old: torch.Tensor, value: torch.nn.Parameter) -> torch.Tensor:
    """What stands in for a tensor: of its class, with its attributes and hooks."""
    if not isinstance(old, torch.nn.Parameter):
        return value.data
    requires_grad = old.requires_grad and value.requires_grad
    if type(old).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return torch.nn.Parameter(value.data, requires_grad)  # no value makes one that wraps others
    kind = getattr(old, "cls_to_become", type(old))
    new: torch.Tensor = torch.Tensor._make_subclass(kind, value.data, requires_grad)
    new.__dict__.update(old.__dict__)
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if getattr(old, hooks, None):
            setattr(new, hooks, getattr(old, hooks))
    return new
