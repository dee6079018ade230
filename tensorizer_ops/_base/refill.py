"""Gives a tensor new memory, and keeps the object if torch supports it."""

from __future__ import annotations

import torch

from tensorizer_ops._base.memory import is_plain


def refill(old: torch.Tensor, value: torch.nn.Parameter) -> torch.Tensor:
    """Return the same object with new memory if possible, otherwise its successor."""
    # Torch cannot change the memory of a tensor that was made in inference mode.
    if not is_plain(old) or old.is_inference():
        return successor(old, value)
    if old.requires_grad and not value.requires_grad:
        old.requires_grad_(False)
    old.data = value.data
    torch.autograd.graph.increment_version(old)  # as copy_() does: what was computed is out of date
    grad = old.grad if old.is_leaf else None
    # Torch requires a gradient to have the type and device of its tensor.
    if grad is not None and (grad.dtype, grad.device) != (old.dtype, old.device):
        old.grad = None
    return old


def successor(old: torch.Tensor, value: torch.nn.Parameter) -> torch.Tensor:
    """Return a replacement for a tensor: of the same class, with its attributes and hooks."""
    if not isinstance(old, torch.nn.Parameter):
        return value.data
    requires_grad = old.requires_grad and value.requires_grad
    if type(old).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        # A subclass that wraps other tensors cannot be made from plain data.
        return torch.nn.Parameter(value.data, requires_grad)
    kind = getattr(old, "cls_to_become", type(old))
    new: torch.Tensor = torch.Tensor._make_subclass(kind, value.data, requires_grad)
    new.__dict__.update(old.__dict__)
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if getattr(old, hooks, None):
            setattr(new, hooks, getattr(old, hooks))
    return new
