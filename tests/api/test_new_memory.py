"""The memory of loads by copy: tensors share huge pages, and each returns its own pages."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from support.process import fork_python, resident
from support.samples import assert_same

ops = torch.ops.tensorizer

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


def tensors(count: int, size: int) -> dict[str, torch.Tensor]:
    return {str(i): torch.full((size,), i, dtype=torch.uint8) for i in range(count)}


def huge_mappings() -> list[tuple[int, int]]:
    """Returns the address ranges that are advised to be huge pages."""
    ranges = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *fields = line.split()
        if "-" in first and ":" not in first:
            low, high = (int(address, 16) for address in first.split("-"))
        elif first == "VmFlags:" and "hg" in fields:
            ranges.append((low, high))
    return ranges


def mapping_of(tensor: torch.Tensor) -> tuple[int, int]:
    address = tensor.data_ptr()
    return next(range for range in huge_mappings() if range[0] <= address < range[1])


def test_tensors_share_huge_pages(path: str) -> None:
    saved = tensors(17, 129 << 10)
    ops.save(path, saved)
    loaded = ops.load(path, copy=True)
    addresses = [tensor.data_ptr() for tensor in loaded.values()]
    size = 132 << 10  # rounded up to whole pages
    assert addresses == [addresses[0] + i * size for i in range(17)]
    assert addresses[0] % (2 * MIB) == 0
    # The memory after the last tensor was unmapped before a huge page could cover it.
    assert mapping_of(loaded["0"]) == (addresses[0], addresses[0] + 17 * size)
    assert_same(loaded, saved)


def test_what_does_not_fit_in_a_block_begins_another(path: str) -> None:
    saved = {
        "before": torch.ones(MIB, dtype=torch.uint8),
        "large": torch.full((256 * MIB + 1,), 2, dtype=torch.uint8),
        "after": torch.full((MIB,), 3, dtype=torch.uint8),
    }
    ops.save(path, saved)
    loaded = ops.load(path, copy=True)
    ranges = [mapping_of(tensor) for tensor in loaded.values()]
    assert [high - low for low, high in ranges] == [MIB, 256 * MIB + PAGE, MIB]
    assert_same(loaded, saved)


def test_a_tensor_that_goes_gives_its_pages_back(path: str) -> None:
    saved = tensors(64, MIB + PAGE)
    ops.save(path, saved)
    loaded = ops.load(path, copy=True)
    before = resident()
    for i in range(0, 64, 2):
        del loaded[str(i)]
    assert before - resident() > 31 * MIB
    assert_same(loaded, {name: saved[name] for name in loaded})


def test_memory_goes_back_where_the_process_has_no_mapping_left(path: str) -> None:
    ops.save(path, tensors(3, 64 * MIB))
    code = """
import ctypes, mmap, sys, torch, tensorizer_ops
from pathlib import Path
from support.process import resident

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
page = mmap.PAGESIZE
most = int(Path("/proc/sys/vm/max_map_count").read_text())

loaded = torch.ops.tensorizer.load(sys.argv[1], copy=True)
before = resident()
area = libc.mmap(None, ctypes.c_size_t(2 * most * page), 0, 0x4022, -1, 0)
taken = 0
while taken < most and libc.mprotect(area + 2 * taken * page, page, 1) == 0:
    taken += 1
assert taken < most
del loaded["1"]
assert before - resident() > 63 << 20, (before, resident())
assert all(bool((loaded[str(i)] == i).all()) for i in (0, 2))
"""
    fork_python(code, path)


def test_less_than_a_huge_page_is_not_mapped(path: str) -> None:
    saved = tensors(15, 129 << 10)
    ops.save(path, saved)
    before = huge_mappings()
    loaded = ops.load(path, copy=True) | ops.load(path, names=["3"], copy=True)
    assert huge_mappings() == before
    assert_same(loaded, saved)
