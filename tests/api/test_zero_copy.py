"""Loads by mapping and by copy: which memory a tensor owns, and how the file can affect it."""

from __future__ import annotations

import gc
import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tensorizer import TensorSerializer

from support.process import resident
from support.raw_format import INDEX_START, Block, pack, pack_header
from support.samples import assert_same, raw, same, sample, zoo
from support.specimen import blocks

ops = torch.ops.tensorizer


def tensors() -> dict[str, torch.Tensor]:
    return {**zoo((40, 50)), "large": sample(torch.float32, (500, 700)), "empty": torch.empty(0)}


def mapped(path: str) -> list[tuple[int, int]]:
    """Returns the address ranges at which this process maps the file."""
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if fields[5:] and fields[5].startswith(path):
            low, high = fields[0].split("-")
            ranges.append((int(low, 16), int(high, 16)))
    return ranges


def is_mapped(tensor: torch.Tensor, path: str) -> bool:
    return any(low <= tensor.data_ptr() < high for low, high in mapped(path))


def test_aligned_files_are_mapped(path: str) -> None:
    ops.save(path, tensors())
    for loaded in (ops.load(path), ops.load(path, verify="all"), ops.load(f"file://{path}")):
        assert all(is_mapped(tensor, path) for tensor in loaded.values() if tensor.numel())
        assert_same(loaded, tensors())
    del loaded
    gc.collect()
    assert not mapped(path)


def test_a_descriptor_is_mapped(path: str) -> None:
    ops.save(path, tensors())
    with open(path, "rb") as stream:
        loaded = ops.load(f"fd:{stream.fileno()}")
    assert is_mapped(loaded["large"], path)
    assert_same(loaded, tensors())


def test_copies_are_not_mapped(path: str) -> None:
    ops.save(path, tensors())
    loaded = ops.load(path, copy=True)
    assert not mapped(path)
    assert_same(loaded, tensors())


def test_what_is_not_aligned_is_copied(path: str) -> None:
    for shift in range(64):
        Path(path).write_bytes(pack(blocks(padding=shift)))
        loaded = ops.load(path)
        for tensor in loaded.values():
            assert tensor.data_ptr() % tensor.itemsize == 0
            assert raw(tensor) == next(b.data for b in blocks() if len(b.data) == tensor.nbytes)


def test_classic_files_load(path: str) -> None:
    serializer = TensorSerializer(path)
    serializer.write_state_dict({name: t for name, t in tensors().items() if t.numel()})
    serializer.close()
    loaded = ops.load(path)
    assert all(tensor.data_ptr() % tensor.itemsize == 0 for tensor in loaded.values())
    assert_same(loaded, {name: t for name, t in tensors().items() if t.numel()})


@pytest.mark.parametrize("copy", [False, True])
def test_results_share_nothing(path: str, copy: bool) -> None:
    ops.save(path, tensors())
    loaded, again = ops.load(path, copy=copy), ops.load(path, copy=copy)
    ranges = sorted(
        (storage.data_ptr(), storage.data_ptr() + storage.nbytes())
        for results in (loaded, again)
        for storage in (tensor.untyped_storage() for tensor in results.values())
        if storage.nbytes()
    )
    assert len(ranges) == 2 * (len(tensors()) - 1)
    assert all(before[1] <= after[0] for before, after in pairwise(ranges))
    for tensor in loaded.values():
        assert tensor.storage_offset() == 0
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        assert tensor.is_contiguous()
        assert not tensor.requires_grad


@pytest.mark.parametrize("copy", [False, True])
def test_writing_to_tensors_leaves_the_file_alone(path: str, copy: bool) -> None:
    ops.save(path, tensors())
    before = Path(path).read_bytes()
    loaded = ops.load(path, copy=copy)
    loaded["large"].fill_(3)
    loaded["int8"].zero_()
    assert torch.equal(loaded["large"], torch.full((500, 700), 3.0))
    assert same(loaded["int16"], tensors()["int16"])
    assert Path(path).read_bytes() == before
    assert_same(ops.load(path, verify="all"), tensors())
    del loaded
    assert Path(path).read_bytes() == before


def test_tensors_outlive_the_reader_and_each_other(path: str) -> None:
    ops.save(path, tensors())
    reader = torch.classes.tensorizer.Reader(path, None)
    loaded = reader.load(None, None, None, "none", False, 0)
    kept = loaded["large"]
    reader.close()
    del reader, loaded
    gc.collect()
    assert mapped(path)
    assert same(kept, tensors()["large"])
    view = kept[3:5]
    del kept
    gc.collect()
    assert same(view, tensors()["large"][3:5])


@pytest.mark.parametrize("copy", [False, True])
def test_a_replaced_file_keeps_its_values(path: str, copy: bool) -> None:
    ops.save(path, tensors())
    loaded = ops.load(path, copy=copy)
    ops.save(path, {name: torch.zeros(3) for name in tensors()})
    assert_same(loaded, tensors())
    Path(path + ".other").write_bytes(b"x" * 10)
    os.replace(path + ".other", path)
    assert_same(loaded, tensors())
    os.unlink(path)
    assert_same(loaded, tensors())


def test_copies_are_immune_to_truncation_and_overwriting(path: str) -> None:
    ops.save(path, tensors())
    loaded = ops.load(path, copy=True)
    with open(path, "r+b") as stream:
        stream.write(b"\xff" * os.path.getsize(path))
    assert_same(loaded, tensors())
    os.truncate(path, 0)
    assert_same(loaded, tensors())


def test_a_storage_that_goes_gives_its_pages_back(path: str) -> None:
    size = 64 << 20
    ops.save(path, {str(index): torch.zeros(size, dtype=torch.uint8) for index in range(2)})
    loaded = ops.load(path)
    before = resident()
    for tensor in loaded.values():
        tensor.fill_(1)
    assert resident() - before > 1.9 * size
    del loaded["0"], tensor
    assert resident() - before < 1.1 * size
    assert bool((loaded["1"] == 1).all())


def test_a_file_larger_than_memory_loads_in_part(path: str) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    size = 2 * memory
    far = {"header_offset": lambda right: right + size, "data_offset": lambda right: right + size}
    small = Block("small", "<i8", (4,), bytes(range(32)), index=far)
    length = {"data_length": size}
    huge = Block("huge", "|u1", (size,), b"", long=True, index=length, header=length)
    huge.padding = -len(pack_header(huge)) % 4096
    data = pack([huge, small], version=5, index_size=4096 - INDEX_START)
    behind = len(pack_header(small)) + 32 + 8
    with open(path, "wb") as stream:
        stream.write(data[:-behind])
        stream.seek(size, os.SEEK_CUR)
        stream.write(data[-behind:])

    assert raw(ops.load(path, names=["small"], verify="all")["small"]) == bytes(range(32))
    assert raw(ops.load(path, names=["small"], copy=True)["small"]) == bytes(range(32))
    tensor = ops.load(path)["huge"]
    assert tensor.shape == (size,)
    tensor[-1] = 5
    assert tensor[[0, size // 2, -2, -1]].tolist() == [0, 0, 0, 5]
    out = torch.zeros(4, dtype=torch.int64)
    ops.load_into(path, ["small"], [out])
    assert raw(out) == bytes(range(32))
