"""Copies of states on the CPU, in memory that is used again for later copies."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tensorizer_ops._base.memory import copyable, identity, users
from tensorizer_ops._base.savable import held, local_tensor

# The size of memory, and whether it is pinned.
_Kind = tuple[int, bool]
# Copies by the key of what they are of, which is kept: the key of a tensor that is gone may become
# that of another one.
_Made = dict[object, tuple[torch.Tensor, torch.Tensor]]


class Copies:
    """Makes copies of states, which change no more. Safe for any thread.

    Memory is used again when no tensor of an earlier copy is left, whatever became of its save.
    What one copy does not use again is let go, so this takes as much as the copies in use.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: list[tuple[_Kind, torch.Tensor]] = []
        self._arrivals: dict[torch.device, torch.Event] = {}

    def __reduce__(self) -> tuple[type[Copies], tuple[()]]:
        return Copies, ()

    def copy(self, state: Any) -> Any:
        """Return a copy of a state. Tied tensors share one."""
        with self._lock:
            return self._copy_of(state)

    def _copy_of(self, state: Any) -> Any:
        free: dict[_Kind, list[torch.Tensor]] = {}
        used = []
        for kind, memory in self._made:
            if _is_free(memory):
                free.setdefault(kind, []).append(memory)
            else:
                used.append((kind, memory))
        self._made = used
        devices: set[torch.device] = set()
        copied = self._copied(state, free, {}, devices)
        for device in devices:
            arrival = torch.Event(device)
            arrival.record(torch.accelerator.current_stream(device))
            self._arrivals[device] = arrival
        return copied

    def wait(self) -> None:
        """Block until all copies from devices have arrived."""
        for arrival in list(self._arrivals.values()):
            arrival.synchronize()

    def clear(self) -> None:
        """Let go of the memory."""
        self._made.clear()

    def _copied(
        self,
        value: Any,
        free: dict[_Kind, list[torch.Tensor]],
        copies: _Made,
        devices: set[torch.device],
        *path: object,
    ) -> Any:
        if isinstance(value, torch.Tensor):
            name = ".".join(map(str, path))
            local = local_tensor(name, value)
            tied = identity(local)
            if tied not in copies:
                with held([name], [local]) as (elements,):
                    copies[tied] = self._copy(elements, free), local
                if not local.is_cpu:
                    devices.add(local.device)
            copied, _ = copies[tied]
            if isinstance(value, DTensor):
                return DTensor(copied, value._spec, requires_grad=False)
            return copied
        if isinstance(value, Mapping) and hasattr(value, "copy"):
            copied = value.copy()
            for key, each in value.items():
                copied[key] = self._copied(each, free, copies, devices, *path, key)
            return copied
        if type(value) in (list, tuple):
            return type(value)(
                self._copied(each, free, copies, devices, *path, place)
                for place, each in enumerate(value)
            )
        return copy.deepcopy(value)

    def _copy(self, tensor: torch.Tensor, free: dict[_Kind, list[torch.Tensor]]) -> torch.Tensor:
        elements = copyable(tensor)
        kind = elements.numel() * elements.itemsize, not tensor.is_cpu
        size, pinned = kind
        if found := free.get(kind):
            memory = found.pop()
        else:
            memory = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        self._made.append((kind, memory))
        copied = memory.view(elements.dtype).view(elements.shape)
        copied.copy_(elements, non_blocking=pinned)
        return copied.view(tensor.dtype)


def _is_free(memory: torch.Tensor) -> bool:
    """Return whether no other tensor, of whatever program or thread, has this memory."""
    return users(memory) <= users(torch.empty(1, device="cpu"))
