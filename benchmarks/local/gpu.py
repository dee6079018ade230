"""Compares loads onto a device and saves from it with other libraries and with the limit.

    python -m benchmarks.local.gpu [--quick] [--size GIB] [--workloads large] [--directory FOLDER]
        [--only-loads]

The files are in the page cache, one at a time. The limit, which no loader can beat, is a copy from
pinned memory that is already allocated to tensors of the same shapes; it is measured beside every
file. Where the program `read_and_copy` has been built from read_and_copy.cu, what a loop of reads
and copies takes for the file is another limit. A load ends when its values are on the device; every
loaded byte is compared with the original, outside of the timing. A library that is not installed,
or does not support the device, gets a row that says so. GB are 10^9 bytes.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

import tensorizer_ops
from benchmarks.harness import tables, workloads
from benchmarks.harness.compare import Rounds
from benchmarks.harness.contenders import Contender
from benchmarks.harness.libraries import (
    SAFETENSORS,
    fast_load,
    safetensors_load,
    streamer_load,
    tensorizer_load,
)
from benchmarks.harness.measure import Timing, check
from benchmarks.harness.memory import Failure, State, size_of
from benchmarks.harness.results import Found, Rows, parser, perform

Works = dict[str, Callable[[], object]]
PINNED_PIECE = 32 << 20
LIMIT = "limit, pinned copy"
READ_LIMIT = "limit, read and copy"
READ_AND_COPY = Path(__file__).with_name("read_and_copy")
CPUS = len(os.sched_getaffinity(0))
# Small chunks, so that there are enough for all threads of a GPU.
CHUNKS = {"digest_chunk": "65536"}


def pinned_copy(state: State, device: torch.device) -> Callable[[], State]:
    """Return a function that copies as many bytes to the device from allocated pinned memory."""
    piece = torch.ones(PINNED_PIECE, dtype=torch.uint8, pin_memory=True)

    def load() -> State:
        loaded: State = {}
        for name, tensor in state.items():
            loaded[name] = torch.empty_like(tensor, device=device)
            flat = loaded[name].view(-1).view(torch.uint8)
            for part in flat.split(PINNED_PIECE):
                part.copy_(piece[: part.numel()], non_blocking=True)
        return loaded

    return load


def pinned_copies(state: State) -> Callable[[], None]:
    """Return a function that copies as many bytes from the device to allocated pinned memory."""
    piece = torch.ones(PINNED_PIECE, dtype=torch.uint8, pin_memory=True)

    def save() -> None:
        for tensor in state.values():
            for part in tensor.view(-1).view(torch.uint8).split(PINNED_PIECE):
                piece[: part.numel()].copy_(part, non_blocking=True)

    return save


def write_pinned(path: Path, size: int) -> Callable[[], None]:
    """Return a function that writes as many bytes of pinned memory to a new file."""
    piece = torch.ones(PINNED_PIECE, dtype=torch.uint8, pin_memory=True)
    content = memoryview(piece.numpy())

    def write() -> None:
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT)

        def write_part(begin: int) -> None:
            os.pwrite(file, content[: min(PINNED_PIECE, size - begin)], begin)

        with ThreadPoolExecutor(CPUS) as pool:
            list(pool.map(write_part, range(0, size, PINNED_PIECE)))
        os.close(file)

    return write


def read_and_copy(path: Path, size: int) -> Contender:
    def measure(_: bool) -> Timing:
        command = (READ_AND_COPY, path, str(CPUS))
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return Timing(float(done.stdout), float(done.stdout), None)

    return Contender(READ_LIMIT, size, measure)


def instanttensor_load(path: str, device: torch.device) -> State:
    import instanttensor

    with instanttensor.safe_open([path], framework="pt", device=str(device)) as file:
        return {name: tensor.clone() for name, tensor in file.tensors()}


def files(
    path: Path, theirs: Path, state: State, device: torch.device
) -> Iterator[tuple[Callable[[], object], Works]]:
    """Yield functions that save the state to one of the paths, with the loads to measure of it."""
    load = partial(tensorizer_ops.load, device=device)
    yield (
        lambda: tensorizer_ops.save(path, state, hashes="chunked", options=CHUNKS),
        {
            "us": lambda: load(path),
            "us, chunks verified": lambda: load(path, verify="all"),
        },
    )
    yield (
        lambda: tensorizer_ops.save(path, state, hashes="chunked"),
        {"us, chunks of 1 MiB verified": lambda: load(path, verify="all")},
    )
    tensorizer_ops.keys.add("gpu benchmark", key=os.urandom(32))
    key = {"key": "named:gpu benchmark"}
    yield (
        lambda: tensorizer_ops.save(path, state, hashes="none", options=key),
        {"us, encrypted": lambda: load(path, options=key)},
    )
    yield (
        lambda: tensorizer_ops.save(path, state, hashes="all"),
        {
            "us, SHA-256 of tensors": lambda: load(path, verify="all"),
            "tensorizer": lambda: tensorizer_load(None, device=device)(str(path)),
        },
    )
    yield (
        lambda: SAFETENSORS.save(state, str(theirs)),
        {
            "us, safetensors": lambda: load(theirs),
            "safetensors": lambda: safetensors_load(str(theirs), str(device)),
            "fastsafetensors": lambda: fast_load(str(theirs), str(device)),
            "InstantTensor": lambda: instanttensor_load(str(theirs), device),
            "Run:ai streamer": lambda: streamer_load(str(device))(str(theirs)),
        },
    )


def timed(work: Callable[[], object], expected: State | None, device: torch.device) -> Timing:
    """Time work, and compare what it has loaded if `expected` is given."""
    gc.collect()
    torch.accelerator.synchronize(device)
    try:
        start = time.perf_counter()
        done = work()
        torch.accelerator.synchronize(device)
        seconds = time.perf_counter() - start
    except Exception as error:  # a library may fail here in any way
        reason = (str(error).splitlines() or [""])[0]
        raise Failure(f"{type(error).__name__}: {reason[:60]}") from error
    if expected is not None:
        assert isinstance(done, dict)
        place = next(iter(expected.values())).device
        check({name: tensor.to(place) for name, tensor in done.items()}, expected)
    return Timing(seconds, seconds, None)


def run(
    title: str, state: State, device: torch.device, folder: Path, rounds: int, saves: bool
) -> Rows:
    path, theirs = folder / "m.tensors", folder / "m.safetensors"
    there = {name: tensor.to(device) for name, tensor in state.items()}
    rows: Rows = {}

    def measure(works: Works, expected: State | None, others: list[Contender]) -> None:
        def contender(name: str, work: Callable[[], object]) -> Contender:
            def measure_one(first: bool) -> Timing:  # the first one is a warm-up, and is checked
                return timed(work, expected if first and name != LIMIT else None, device)

            return Contender(name, size_of(state), measure_one)

        contenders = [*others, *(contender(*one) for one in works.items())]
        measuring = Rounds(title, contenders, quick=False)
        measuring.measure("warm", rounds)
        # At once, so that a program that is stopped has not worked in vain.
        print(tables.of_rows(title, measuring.rows), end="\n\n", flush=True)
        rows.update(measuring.rows)

    others = [read_and_copy(path, size_of(state))] if READ_AND_COPY.exists() else []
    for save, loads in files(path, theirs, state, device):
        try:
            save()
        except ImportError:
            continue  # safetensors is not installed
        # A GPU compares faster, and a simulated device cannot.
        expected = there if device.type == "cuda" else state
        measure({LIMIT: pinned_copy(state, device), **loads}, expected, others)
        others = []
        for file in (path, theirs):
            file.unlink(missing_ok=True)
    if not saves:
        return rows
    works: Works = {
        LIMIT + " back": pinned_copies(there),
        "limit, write": write_pinned(path, size_of(state)),
        "us, save hashes=all": lambda: tensorizer_ops.save(path, there, hashes="all"),
        "us, save hashes=none": lambda: tensorizer_ops.save(path, there, hashes="none"),
        "torch.save": lambda: torch.save(there, path),
        "safetensors, save": lambda: SAFETENSORS.save(there, str(theirs)),
    }
    measure(works, None, [])
    tensorizer_ops.save(path, there)
    try:
        check(tensorizer_ops.load(path), state)
    except Failure as failure:
        rows["us, save hashes=all"].error = f"saved wrongly: {failure}"
    return rows


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--size", type=float, metavar="GIB", help="of the large workload: 4")
    arguments.add_argument("--only-loads", action="store_true")
    names = ("large", "transformer")
    arguments.add_argument("--workloads", nargs="+", choices=names, default=names)
    arguments.add_argument("--device", help="the current accelerator by default")
    given = arguments.parse_args()
    device = torch.device(given.device or torch.accelerator.current_accelerator() or "cpu")
    if device.type == "cpu":
        sys.exit("there is no accelerator here: benchmarks.local.run measures the CPU")
    if device.index is None:  # some libraries need the number
        device = torch.device(device.type, torch.accelerator.current_device_index())
    gc.freeze()  # collections between rounds need not visit the modules

    def measure(folder: Path) -> Found:
        found: Found = {}
        gib = given.size or (0.03 if given.quick else 4)
        shapes = workloads.of_mib(max(1, round(gib * 32)), 32)
        large = workloads.Workload(lambda _: shapes)
        for name, workload in zip(names, (large, workloads.TRANSFORMER), strict=True):
            if name in given.workloads:
                state = workloads.make(workload, given.quick)
                rounds, saves = given.rounds or 5, not given.only_loads
                found[name] = run(name, state, device, folder, rounds, saves)
        return {**found, "device": str(device)}

    perform(given, "", measure)


if __name__ == "__main__":
    main()
