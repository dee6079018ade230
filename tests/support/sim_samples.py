"""Test data on the simulated device, and an upload as a loader does it."""

from __future__ import annotations

import torch

from support import sim_device as sim

# The bytes with which the device fills new memory and freed memory.
NEW = 0xA5
FREED = 0xDD


def pattern(size: int) -> torch.Tensor:
    return (torch.arange(size) % 251).to(torch.uint8)


def pinned(size: int) -> torch.Tensor:
    """Returns pinned memory with a known pattern, for a stream that reads it late."""
    tensor = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    assert tensor.is_pinned()
    return tensor.copy_(pattern(size))


def is_all(tensor: torch.Tensor, byte: int) -> bool:
    return bool((tensor.cpu().view(torch.uint8) == byte).all())


def upload(tensors: list[torch.Tensor], data: torch.Tensor, slots: int = 2) -> None:
    """Uploads as a loader does: through a ring of pinned memory, on a separate stream."""
    chunk = 1000
    home = torch.accelerator.current_stream()
    side = torch.Stream("sim")
    ring = [torch.empty(chunk, dtype=torch.uint8, pin_memory=True) for _ in range(slots)]
    free = [torch.Event("sim") for _ in range(slots)]
    allocated = torch.Event("sim")
    allocated.record(home)
    side.wait_event(allocated)
    turn = 0
    with sim.use(side):
        for tensor in tensors:
            tensor.record_stream(side)
            for at in range(0, len(tensor), chunk):
                slot = turn % slots
                if turn >= slots:
                    free[slot].synchronize()
                ring[slot].copy_(data[at : at + chunk])
                tensor[at : at + chunk].copy_(ring[slot], non_blocking=True)
                free[slot].record(side)
                turn += 1
    done = torch.Event("sim")
    done.record(side)
    home.wait_event(done)
