"""Memory that the ranks of one host fill together, and then have each for itself."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence

import torch

from tensorizer_ops._distributed.peers import Peers

_ALIGNMENT = 64
# Reserves no swap for the pages, most of which a process never writes to.
_PRIVATE = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)


class HostMemory:
    """Tensors in a file without a name, which ends with the last process that uses it."""

    def __init__(self, types: Sequence[torch.dtype], shapes: Sequence[Sequence[int]]) -> None:
        self._types, self._shapes = types, shapes
        self._sizes = [
            math.prod(shape) * dtype.itemsize for dtype, shape in zip(types, shapes, strict=True)
        ]
        self._offsets = []
        end = 0
        for size in self._sizes:
            self._offsets.append(end)
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        self._end = max(end, 1)
        self._descriptor = -1

    def meet(self, peers: Peers) -> bool:
        """Make the memory the same for all ranks; return whether all of them can see it."""
        if peers.rank == 0:
            self._descriptor = os.memfd_create("tensorizer_ops", os.MFD_CLOEXEC)
            os.truncate(self._descriptor, self._end)
        number = peers.agree(self._descriptor, lambda descriptors: descriptors[0])
        if peers.rank != 0 and peers.processes:
            try:
                path = f"/proc/{peers.processes[0]}/fd/{number}"
                self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:  # of another user, or in a container of its own
                pass
        return peers.agree(self._descriptor != -1, all)

    def shared(self) -> list[torch.Tensor]:
        """Return the tensors as all ranks see them."""
        return self._tensors(mmap.MAP_SHARED)

    def private(self) -> list[torch.Tensor]:
        """Return the tensors; what is written to them, the other ranks do not see."""
        return self._tensors(_PRIVATE)

    def close(self) -> None:
        """Close the file; its tensors stay."""
        if self._descriptor != -1:
            os.close(self._descriptor)

    def _tensors(self, flags: int) -> list[torch.Tensor]:
        pages = mmap.mmap(self._descriptor, self._end, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        tensors = []
        for dtype, shape, size, offset in zip(
            self._types, self._shapes, self._sizes, self._offsets, strict=True
        ):
            if size == 0:
                tensors.append(torch.empty(shape, dtype=dtype, device="cpu"))
                continue
            data = torch.frombuffer(pages, dtype=torch.uint8, count=size, offset=offset)
            tensors.append(data.view(dtype).view(shape))
        return tensors
