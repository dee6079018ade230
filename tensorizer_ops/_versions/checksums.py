"""Whether the weights in memory are still those of the version that was put there."""

from __future__ import annotations

import torch

from tensorizer_ops._base.memory import as_bytes, identity, is_plain

_WORDS = 512  # in a block of 4 KiB
_AT_ONCE = 1 << 14  # blocks that a device multiplies: what it makes takes 64 MiB


@torch.no_grad()
def checksums(model: torch.nn.Module) -> list[int]:
    """Return a number for each of a model's parameters and persistent buffers.

    Reads them all, at the speed of memory: torch does not count all changes (``tensor._version``),
    such as ``tensor.data.copy_`` of vLLM's loaders, and what a server discards when it sleeps.
    """
    # All are on their way before the first is waited for.
    return [int(number) for number in [_checksum(tensor) for tensor in tensors_of(model)]]


def tensors_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return a model's parameters and persistent buffers, and tied ones once."""
    tensors = [value for value in model.state_dict().values() if isinstance(value, torch.Tensor)]
    return list({identity(tensor): tensor for tensor in tensors if is_plain(tensor)}.values())


def _checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Add the words of each block, and the sums, all weighed: so they tell their places."""
    data = as_bytes(tensor)
    if data.storage_offset() % 8:
        data = data.clone()
    words = data[: len(data) // 8 * 8].view(torch.int64)
    blocks = words[: len(words) // _WORDS * _WORDS].view(-1, _WORDS)
    rest = words[blocks.numel() :], data[words.numel() * 8 :].long()
    sums = torch.cat([weighed_sums(blocks, on_cpu=blocks.is_cpu), *rest])
    return (sums * (torch.arange(len(sums), device=sums.device) * 2 + 1)).sum()


def weighed_sums(blocks: torch.Tensor, *, on_cpu: bool) -> torch.Tensor:
    """Add the words of each block, times odd numbers."""
    weights = torch.arange(_WORDS, device=blocks.device) * 2 + 1
    if on_cpu:
        return blocks.mv(weights)
    # Devices multiply no matrices of integers.
    return torch.cat([(part * weights).sum(1) for part in blocks.split(_AT_ONCE)])
