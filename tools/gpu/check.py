"""Checks loads onto a GPU, and digests there, on the machine that has it.

    python check.py [--device cuda] [--quick]

Loads of every kind are compared with the same loads onto the CPU: values, what is verified and
decrypted on the device, and what damage leaves. The check fails as well if the kernels of a CUDA
device are not in use. ``make gpu-bundle`` packs this program for a machine without a network.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import tensorizer_ops
from tensorizer_ops.errors import Crypto, HashMismatch

Tensors = dict[str, torch.Tensor]

KEY = {"key": "named:gpu check"}
CHUNK = 65_536
# In bytes: around the size from which a device checks, several chunks of a cipher, many chunks.
SIZES = (0, 4, 65_532, 65_536, 65_540, 1 << 20, (5 << 20) + 4)
LARGE = (70 << 20) + 8
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64)
# How a file is saved, and how it is loaded: hashes, options of the save, verify.
WAYS: dict[str, tuple[str, dict[str, str], str]] = {
    "plain": ("none", {}, "none"),
    "chunks of 64 KiB": ("chunked", {"digest_chunk": str(CHUNK)}, "all"),
    "chunks of 1 MiB": ("chunked", {}, "all"),
    "CRC32": ("crc32", {}, "crc32"),
    "SHA-256 of tensors": ("sha256", {}, "all"),
    "encrypted": ("none", KEY, "none"),
    "encrypted, SHA-256": ("sha256", KEY, "all"),
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


def check_loads(path: Path, saved: Tensors, device: torch.device, way: str) -> None:
    hashes, options, verify = WAYS[way]
    key = {name: value for name, value in options.items() if name == "key"}
    tensorizer_ops.save(path, saved, hashes=hashes, options=options)  # type: ignore[arg-type]
    for staging in ("134217728", "1048576"):
        given = key | {"staging": staging}
        how = {"device": device, "verify": verify, "options": given}
        check_same(tensorizer_ops.load(path, **how), saved)  # type: ignore[arg-type]
    outputs = {name: torch.ones_like(tensor, device=device) for name, tensor in saved.items()}
    tensorizer_ops.load_into(outputs, path, verify=verify, options=key)  # type: ignore[arg-type]
    check_same(outputs, saved)
    again = path.with_suffix(".again")
    tensorizer_ops.save(again, outputs, hashes=hashes, options=options)  # type: ignore[arg-type]
    check_same(tensorizer_ops.load(again, options=key), saved)


def check_damage(path: Path, saved: Tensors, device: torch.device, way: str) -> None:
    """Damage one byte of a large tensor: the load fails, and leaves zeros."""
    hashes, options, verify = WAYS[way]
    key = {name: value for name, value in options.items() if name == "key"}
    tensorizer_ops.save(path, saved, hashes=hashes, options=options)  # type: ignore[arg-type]
    name = max(saved, key=lambda each: saved[each].nbytes)
    reader = torch.classes.tensorizer.Reader(str(path), key or None)
    place = int(reader.stored(name)["data_offset"]) + saved[name].nbytes // 2
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    outputs = {each: torch.ones_like(tensor, device=device) for each, tensor in saved.items()}
    try:
        tensorizer_ops.load_into(outputs, path, verify=verify, options=key)  # type: ignore[arg-type]
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


def checks(
    folder: Path, device: torch.device, quick: bool
) -> Iterator[tuple[str, Callable[[], None]]]:
    saved = tensors(quick)
    path = folder / "m.tensors"
    for way in WAYS:
        yield f"loads: {way}", lambda way=way: check_loads(path, saved, device, way)  # type: ignore[misc]
    for way in WAYS:
        if way != "plain":
            yield f"damage: {way}", lambda way=way: check_damage(path, saved, device, way)  # type: ignore[misc]
    yield "digests of memory", lambda: check_digests(device)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="without large tensors")
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
