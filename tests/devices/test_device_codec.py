"""Digests and ciphers computed by a device: the same files and checks as on the host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support import sim_device as sim
from support.samples import same, sample
from tensorizer_ops.errors import Crypto, HashMismatch

ops = torch.ops.tensorizer

MIB = 1 << 20
# Two pieces of 256 KiB for each of two workers.
SMALL = {"staging": str(MIB)}
ENCRYPTED = SMALL | {"key": "named:codec"}


@pytest.fixture(autouse=True)
def own_codec() -> Iterator[None]:
    tensorizer_ops.keys.add("codec", key=bytes(range(1, 33)))
    with sim.fresh():
        sim.set_codec(True)
        yield
        assert not sim.violations()
    tensorizer_ops.keys.remove("codec")


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    """Large tensors of several pieces and chunks, small ones that share a piece, an empty one."""
    sizes = [5 * MIB + 4, 300_000, *[1000] * 40, 0]
    return {f"t{i}": sample(torch.float32, (size // 4,), i) for i, size in enumerate(sizes)}


def on_device(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to("sim") for name, tensor in tensors.items()}


def assert_loaded(path: str, tensors: dict[str, torch.Tensor], **how: object) -> None:
    loaded = ops.load(path, threads=2, **how)
    for name, tensor in tensors.items():
        assert same(loaded[name].cpu(), tensor), name


@pytest.mark.parametrize("hashes", ["all", "sha256", "crc32", "none"])
def test_a_file_is_the_same(tmp_path: Path, tensors: dict[str, torch.Tensor], hashes: str) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    ops.save(ours, tensors, hashes=hashes)
    ops.save(theirs, on_device(tensors), hashes=hashes, threads=2, options=SMALL)
    assert Path(ours).read_bytes() == Path(theirs).read_bytes()
    assert (sim.counter("codec.digests") > 0) == (hashes != "none")


def test_digests_are_checked_on_the_device(path: str, tensors: dict[str, torch.Tensor]) -> None:
    ops.save(path, tensors)
    assert_loaded(path, tensors, device="sim", verify="all", options=SMALL)
    assert sim.counter("codec.digests") == len(tensors) - 1, "the empty one stays on the host"
    digest = ops.digest(path)
    assert_loaded(path, tensors, device="sim", options=SMALL | {"digest": digest})


@pytest.mark.parametrize("name", ["t0", "t1", "t7"])
def test_damage_is_found_on_the_device(
    path: str, tensors: dict[str, torch.Tensor], name: str
) -> None:
    ops.save(path, tensors)
    damaged = bytearray(Path(path).read_bytes())
    at = damaged.index(tensors[name].numpy().tobytes())
    damaged[at + 500] ^= 1
    Path(path).write_bytes(damaged)
    with pytest.raises(HashMismatch, match=name):
        ops.load(path, device="sim", verify="all", threads=2, options=SMALL)


def test_encrypted_files(path: str, tensors: dict[str, torch.Tensor]) -> None:
    ops.save(path, on_device(tensors), hashes="sha256", threads=2, options=ENCRYPTED)
    # The large tensor has 3 chunks, and each small one has one.
    assert sim.counter("codec.ciphers") == 3 + 1 + 40
    assert_loaded(path, tensors, verify="all", options={"key": "named:codec"})
    assert sim.counter("codec.ciphers") == 3 + 1 + 40
    assert_loaded(path, tensors, device="sim", verify="all", options=ENCRYPTED)
    assert sim.counter("codec.ciphers") == 2 * (3 + 1 + 40)


@pytest.mark.parametrize("options", [SMALL, ENCRYPTED])
def test_pipes(path: str, tensors: dict[str, torch.Tensor], options: dict[str, str]) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as end, ThreadPoolExecutor() as pool:
        seen = pool.submit(end.read)
        with os.fdopen(writing, "wb") as pipe:
            ops.save(f"fd:{pipe.fileno()}", on_device(tensors), hashes="sha256", options=options)
        Path(path).write_bytes(seen.result())
    assert sim.counter("codec.digests") == len(tensors) - 1
    assert_loaded(path, tensors, verify="all", options=options)


def test_a_wrong_mac_leaves_nothing(path: str, tensors: dict[str, torch.Tensor]) -> None:
    ops.save(path, tensors, hashes="sha256", options={"key": "named:codec"})
    damaged = bytearray(Path(path).read_bytes())
    damaged[-3 * MIB] ^= 1  # in the large tensor or after it
    Path(path).write_bytes(damaged)
    outputs = [torch.ones_like(tensor).to("sim") for tensor in tensors.values()]
    with pytest.raises(Crypto):
        ops.load_into(path, list(tensors), outputs, threads=2, options=ENCRYPTED)


def test_other_types_stay_on_the_host(path: str) -> None:
    tensors = {"a": sample(torch.float32, (1000, 300))}
    ops.save(path, tensors)
    loaded = ops.load(path, device="sim", dtype=torch.float16, verify="all", options=SMALL)
    assert same(loaded["a"].cpu(), tensors["a"].to(torch.float16))
    assert sim.counter("codec.digests") == 0
