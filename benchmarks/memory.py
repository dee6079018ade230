"""What is in memory: files in the page cache, tensors in their own memory or in a mapping."""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
from pathlib import Path

import torch

State = dict[str, torch.Tensor]

PAGE = mmap.PAGESIZE


class Failure(Exception):
    """A measurement that gave no figure; the text says why."""


# -- page cache ------------------------------------------------------------------------------------


def resident(path: Path) -> float:
    """The part of a file that is in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
        count = (len(view) + PAGE - 1) // PAGE
        pages = (ctypes.c_ubyte * count)()
        start = ctypes.c_char.from_buffer(view)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.byref(start), ctypes.c_size_t(len(view)), pages)
        del start
        if failed:
            raise OSError(ctypes.get_errno(), "mincore", str(path))
        return sum(page & 1 for page in bytes(pages)) / count


def make_cold(path: Path) -> None:
    """Takes a file out of the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if (left := resident(path)) > 0.01:
        raise Failure(f"{left:.0%} of {path.name} stays in the page cache")


def make_warm(path: Path) -> None:
    """Brings all of a file into the page cache."""
    buffer = bytearray(8 << 20)
    for _ in range(5):  # the kernel may take some back for others meanwhile
        if resident(path) == 1.0:
            return
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    raise Failure(f"{path.name} does not stay in the page cache: too little memory")


def settle() -> None:
    """Waits until no earlier save is still on its way to the disk."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    if sum(int(fields[key].split()[0]) for key in ("Dirty", "Writeback")) > 64 << 10:
        os.sync()


# -- memory ----------------------------------------------------------------------------------------


class Reserve:
    """Memory that is held between measurements and lent to each of them.

    In a virtual machine, memory that is free for two seconds may go back to the host. Getting it
    back takes 40 times longer than a page fault (measured), which would dominate the figures by
    chance. Memory that was in use until now is there at once.
    """

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._memory.madvise(mmap.MADV_DONTFORK)
        self._lent = size
        self.take_back()

    def lend(self, size: int) -> None:
        self._lent = min((size + PAGE - 1) // PAGE * PAGE, len(self._memory))
        if self._lent:
            self._memory.madvise(mmap.MADV_DONTNEED, 0, self._lent)

    def take_back(self) -> None:
        start = ctypes.c_char.from_buffer(self._memory)
        ctypes.memset(ctypes.byref(start), 1, self._lent)
        self._lent = 0


def private_memory(process: int | str = "self") -> int:
    """The memory of a process that no file backs.

    Pages of a mapped file are left out: they are the page cache, which the kernel takes back when
    it likes. So a tensor counts when its loader gave it memory, and does not when it is a mapping.
    """
    total = 0
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            total += int(line.split()[1]) << 10
    return total


def _file_mappings() -> tuple[list[int], list[int]]:
    starts, ends = [], []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, _, inode = line.split()[:5]
        if inode != "0":
            start, end = (int(address, 16) for address in addresses.split("-"))
            starts.append(start)
            ends.append(end)
    return starts, ends


def mapped(state: State) -> State:
    """Those of the tensors that lie in a mapping of a file."""
    starts, ends = _file_mappings()

    def is_mapped(tensor: torch.Tensor) -> bool:
        i = bisect.bisect_right(starts, tensor.data_ptr()) - 1
        return i >= 0 and tensor.data_ptr() < ends[i]

    return {name: tensor for name, tensor in state.items() if is_mapped(tensor)}


def pages_of(state: State) -> list[tuple[int, int]]:
    """The whole pages that tensors lie on, neighbours merged, as (address, size)."""
    spans: list[tuple[int, int]] = []
    for start, size in sorted((tensor.data_ptr(), tensor.nbytes) for tensor in state.values()):
        if size == 0:
            continue
        first, end = start // PAGE * PAGE, (start + size + PAGE - 1) // PAGE * PAGE
        if spans and first <= sum(spans[-1]):
            first = spans.pop()[0]
        spans.append((first, end - first))
    return spans


def pages_as_bytes(spans: list[tuple[int, int]]) -> list[torch.Tensor]:
    """One byte of every page, not read yet."""
    memory = [(ctypes.c_uint8 * size).from_address(address) for address, size in spans]
    return [torch.frombuffer(span, dtype=torch.uint8)[::PAGE] for span in memory]


def touch(pages: list[torch.Tensor]) -> int:
    # One thread: torch would share one long span among several, but not many short ones.
    torch.set_num_threads(1)
    return sum(int(bytes_.sum()) for bytes_ in pages)


def size_of(state: State) -> int:
    return sum(tensor.nbytes for tensor in state.values())
