"""Checks loads onto a GPU, and digests there, on the machine that has it.

    python check.py [--device cuda] [--quick]

Loads of every kind are compared with the same loads onto the CPU: values, what is verified and
decrypted on the device, and what damage leaves. On a CUDA device, loads beside a captured graph, on
two streams at once and into a compiled model are checked as well, and that its kernels are in use.
``make gpu-bundle`` packs this program for a machine without a network.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

import tensorizer_ops
from tensorizer_ops.errors import Crypto, HashMismatch

Tensors = dict[str, torch.Tensor]

KEY = {"key": "named:gpu check"}
CHUNK = 65_536
# In bytes: around the size from which a device checks, several chunks of a cipher, many chunks.
SIZES = (0, 4, 65_532, 65_536, 65_540, 1 << 20, (5 << 20) + 4)
LARGE = (140 << 20) + 8
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64)
# How a file is saved, and what a load verifies.
WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({"hashes": "none"}, "none"),
    "chunks of 64 KiB": ({"hashes": "chunked", "options": {"digest_chunk": str(CHUNK)}}, "all"),
    "chunks of 1 MiB": ({"hashes": "chunked"}, "all"),
    "CRC32": ({"hashes": "crc32"}, "crc32"),
    "SHA-256 of tensors": ({"hashes": "sha256"}, "all"),
    "encrypted": ({"hashes": "none", "options": KEY}, "none"),
    "encrypted, SHA-256": ({"hashes": "sha256", "options": KEY}, "all"),
}


def tensors(quick: bool) -> Tensors:
    generator = torch.Generator().manual_seed(7)
    made = {}
    for size in (*SIZES, *(() if quick else (LARGE,))):
        values = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        made[f"bytes {size}"] = values
    for dtype in TYPES:
        made[str(dtype)] = (torch.randn(1000, 300, generator=generator) * 9).to(dtype)
    return made


def is_same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    found = found.cpu()
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    return torch.equal(found.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))


def check_same(found: Tensors, expected: Tensors) -> None:
    for name, tensor in expected.items():
        assert is_same(found[name], tensor), f"{name} has other values"


def options_of(how: dict[str, Any]) -> dict[str, str]:
    """Return the options that a load needs of a file that was saved like this."""
    return KEY if how.get("options") is KEY else {}


def check_loads(path: Path, saved: Tensors, device: torch.device, way: str) -> None:
    how, verify = WAYS[way]
    key = options_of(how)
    tensorizer_ops.save(path, saved, **how)
    # A device hashes no chunks of a load that many threads would end sooner.
    for staging, threads in (("134217728", 1), ("1048576", 0)):
        given: Any = {
            "verify": verify,
            "threads": threads,
            "options": key | {"staging": staging},
        }
        check_same(tensorizer_ops.load(path, device=device, **given), saved)
    outputs = {name: torch.ones_like(tensor, device=device) for name, tensor in saved.items()}
    tensorizer_ops.load_into(outputs, path, **given)
    check_same(outputs, saved)
    again = path.with_suffix(".again")
    tensorizer_ops.save(again, outputs, **how)
    check_same(tensorizer_ops.load(again, options=key), saved)


def check_damage(path: Path, saved: Tensors, device: torch.device, way: str) -> None:
    """Damage one byte of a large tensor: the load fails, and leaves zeros."""
    how, verify = WAYS[way]
    given: Any = {"verify": verify, "threads": 1, "options": options_of(how)}
    tensorizer_ops.save(path, saved, **how)
    name = max(saved, key=lambda each: saved[each].nbytes)
    reader = torch.classes.tensorizer.Reader(str(path), given["options"] or None)
    data = bytearray(path.read_bytes())
    data[int(reader.stored(name)["data_offset"]) + saved[name].nbytes // 4] ^= 1
    path.write_bytes(data)
    outputs = {each: torch.ones_like(tensor, device=device) for each, tensor in saved.items()}
    try:
        tensorizer_ops.load_into(outputs, path, **given)
    except (HashMismatch, Crypto) as error:
        assert name in str(error), f"the error names another tensor: {error}"
    else:
        raise AssertionError("damage was not noticed")
    assert not outputs[name].cpu().any(), "a damaged tensor is left"


def check_digests(device: torch.device) -> None:
    data = torch.randint(0, 256, ((9 << 20) + 13,), dtype=torch.uint8)
    there = data.to(device)
    ops = torch.ops.tensorizer
    for begin, end in ((0, len(data)), (1, 70_000), (3, 4), (5, 5), (2, 1 << 20)):
        here, part = data[begin:end], there[begin:end]
        assert ops.crc32(part) == ops.crc32(here), f"CRC32 of bytes {begin} to {end}"
        for chunk in (64, 1000, CHUNK, 1 << 40):
            found = ops.sha256_chunks(part, chunk)
            assert found.device == there.device
            assert is_same(found, ops.sha256_chunks(here, chunk)), f"SHA-256 of {chunk} bytes each"


# -- what programs do with a CUDA device beside a load ---------------------------------------------


def check_beside_a_graph(path: Path, saved: Tensors) -> None:
    """Load while a captured graph is replayed."""
    tensorizer_ops.save(path, saved, hashes="chunked")
    value = torch.randn(4096, 4096, device="cuda")
    expected = (value @ value).relu()  # also prepares cuBLAS, which a capture may not
    captured, stream, stop = torch.cuda.CUDAGraph(), torch.cuda.Stream(), threading.Event()
    with torch.cuda.graph(captured):
        result = (value @ value).relu()

    def replay() -> None:
        with torch.cuda.stream(stream):
            while True:
                captured.replay()
                stream.synchronize()
                if stop.is_set():
                    return

    with ThreadPoolExecutor() as pool:
        replays = pool.submit(replay)
        try:
            for _ in range(3):
                check_same(tensorizer_ops.load(path, device="cuda", verify="all"), saved)
        finally:
            stop.set()
        replays.result()
    assert torch.allclose(result, expected), "the graph computes other values"


def check_streams(path: Path, saved: Tensors) -> None:
    """Load on two threads at once, each with a stream of its own."""
    files = {path: saved, path.with_suffix(".other"): {n: t.flip(0) for n, t in saved.items()}}
    for file, state in files.items():
        tensorizer_ops.save(file, state, hashes="chunked")

    def load(file: Path) -> Tensors:
        with torch.cuda.stream(torch.cuda.Stream()):
            loaded = tensorizer_ops.load(file, device="cuda", verify="all")
            # What follows in the stream finds the values.
            copies = {name: tensor.clone() for name, tensor in loaded.items()}
            torch.cuda.current_stream().synchronize()
            return copies

    with ThreadPoolExecutor(2) as pool:
        for found, state in zip(pool.map(load, files), files.values(), strict=True):
            check_same(found, state)


def check_compiled(path: Path) -> None:
    """Load other weights into a model that was compiled with CUDA graphs."""

    def model() -> torch.nn.Module:
        return torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()

    loaded, value = model(), torch.randn(64, 1024, device="cuda")
    run = torch.compile(loaded, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(3):
            other = model()
            tensorizer_ops.save(path, other.state_dict())
            tensorizer_ops.load_into(loaded, path)
            for _ in range(4):  # warms up, records the graph, and replays it
                torch.compiler.cudagraph_mark_step_begin()
                assert torch.allclose(run(value), other(value), atol=1e-3), "old weights are used"


def checks(
    folder: Path, device: torch.device, quick: bool
) -> Iterator[tuple[str, Callable[[], None]]]:
    saved = tensors(quick)
    path = folder / "m.tensors"
    for way in WAYS:
        yield f"loads: {way}", partial(check_loads, path, saved, device, way)
    for way in WAYS:
        if way != "plain":
            yield f"damage: {way}", partial(check_damage, path, saved, device, way)
    yield "digests of memory", partial(check_digests, device)
    # Tools that watch memory do without torch's allocator, which a capture needs.
    if device.type == "cuda" and not quick:
        yield "beside a graph", partial(check_beside_a_graph, path, saved)
        yield "two streams", partial(check_streams, path, saved)
        yield "compiled with graphs", partial(check_compiled, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="without large tensors, and graphs")
    given = parser.parse_args()
    device = torch.device(given.device)
    try:
        torch.ones(1, device=device)
    except Exception as error:  # each backend has its own
        sys.exit(f"check.py: cannot use {device}: {str(error).splitlines()[0]}")
    tensorizer_ops.keys.add("gpu check", key=os.urandom(32))
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        for what, check in checks(Path(name), device, given.quick):
            try:
                check()
            except Exception as error:
                failed += 1
                print(f"FAILED  {what}: {type(error).__name__}: {str(error).splitlines()[0]}")
            else:
                print(f"ok      {what}")
    key = torch._C._dispatch_key_for_device(device.type)
    own = torch._C._dispatch_has_kernel_for_dispatch_key("tensorizer_device::decrypt", key)
    print(f"the device {'decrypts and verifies' if own else 'leaves all of it to the CPU'}")
    if device.type == "cuda" and not own:
        print("FAILED  libtensorizer_ops_cuda.so is not in use: the log of tensorizer_ops says why")
        failed += 1
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
