"""Controls and measures memory: files in the page cache, and tensors in memory or mapped."""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import re
import subprocess
from pathlib import Path

import torch

State = dict[str, torch.Tensor]

PAGE = mmap.PAGESIZE


class Failure(Exception):
    """A measurement failed; the message says why."""


# -- page cache ------------------------------------------------------------------------------------


def resident(path: Path) -> float:
    """Return the fraction of a file that is in the page cache."""
    command = ("fincore", "--bytes", "--noheadings", "--output", "RES", str(path))
    pages = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout) // PAGE
    return pages / -(-path.stat().st_size // PAGE)


def make_cold(path: Path) -> None:
    """Remove a file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if (left := resident(path)) > 0.01:
        raise Failure(f"{left:.0%} of {path.name} stays in the page cache")


def make_warm(path: Path) -> None:
    """Read a whole file into the page cache."""
    buffer = bytearray(8 << 20)
    for _ in range(5):  # the kernel may evict some pages meanwhile
        if resident(path) == 1.0:
            return
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    raise Failure(f"{path.name} does not stay in the page cache: too little memory")


def settle() -> None:
    """Wait until the data of earlier saves has been written to the disk."""
    if system_memory("Dirty") + system_memory("Writeback") > 64 << 20:
        os.sync()


def system_memory(field: str, file: str = "/proc/meminfo") -> int:
    """Return a number of bytes of a file in /proc."""
    text = "\n" + Path(file).read_text()
    return int(text.partition(f"\n{field}:")[2].split()[0]) << 10


# -- memory ----------------------------------------------------------------------------------------


class Reserve:
    """Memory that is held between measurements and freed for each of them.

    In a virtual machine, memory that is free for two seconds may be returned to the host. Getting
    it back takes 40 times as long as a page fault (measured), which would dominate some results by
    chance. Memory that was freed just now is available at once.
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
    """Return the memory of a process that is not backed by a file.

    Pages of a mapped file are not counted: they are page cache, which the kernel can reclaim at any
    time. So a tensor counts if its loader allocated memory for it, and not if it is mapped. A
    process that has ended has no memory, and still has a status until its parent asks for it.
    """
    status = Path(f"/proc/{process}/status").read_text()
    return sum(map(int, re.findall(r"^Rss(?:Anon|Shmem):\s*(\d+)", status, re.MULTILINE))) << 10


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
    """Return the tensors that are in a mapping of a file."""
    starts, ends = _file_mappings()

    def is_mapped(tensor: torch.Tensor) -> bool:
        i = bisect.bisect_right(starts, tensor.data_ptr()) - 1
        return i >= 0 and tensor.data_ptr() < ends[i]

    return {name: tensor for name, tensor in state.items() if is_mapped(tensor)}


def pages_of(state: State) -> list[tuple[int, int]]:
    """Return the pages that tensors are on as (address, size), adjacent ones merged."""
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
    """Return views of one byte of every page; reads none of them."""
    memory = [(ctypes.c_uint8 * size).from_address(address) for address, size in spans]
    return [torch.frombuffer(span, dtype=torch.uint8)[::PAGE] for span in memory]


def touch(pages: list[torch.Tensor]) -> int:
    # One thread, as torch would use several for one long span, but not for many short ones.
    torch.set_num_threads(1)
    return sum(int(bytes_.sum()) for bytes_ in pages)


def size_of(state: State) -> int:
    return sum(tensor.nbytes for tensor in state.values())
