"""Compares loads onto a device and saves from it with other libraries and with the limit.

    python -m benchmarks.local.gpu [--quick] [--size GIB] [--workloads large] [--directory FOLDER]

The files are in the page cache, one at a time. The limit, which no loader can beat, is a copy from
pinned memory that is already allocated to tensors of the same shapes; it is measured beside every
file. A load ends when its values are on the device; every loaded byte is compared with the
original, outside of the timing. A library that is not installed, or does not support the device,
gets a row that says so. GB are 10^9 bytes. Targets compare the best rounds.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

import tensorizer_ops
from benchmarks.harness import tables, workloads
from benchmarks.harness.libraries import (
    SAFETENSORS,
    fast_load,
    safetensors_load,
    streamer_load,
    tensorizer_load,
)
from benchmarks.harness.memory import State
from benchmarks.harness.results import Found, Row, Rows, parser, perform

Works = dict[str, Callable[[], object]]
PINNED_PIECE = 32 << 20
LIMIT = "limit, pinned copy"
TARGETS = [
    tables.Target(workload, row, factor, (LIMIT,))
    for workload, row, factor in (
        ("large", "us", 0.95),
        ("large", "us, chunks verified", 0.9),
        ("large", "us, encrypted", 0.8),
        ("transformer", "us", 0.9),
        ("transformer", "us, chunks verified", 0.9),
        ("transformer", "us, encrypted", 0.8),
    )
]
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


def instanttensor_load(path: str, device: torch.device) -> State:
    import instanttensor

    with instanttensor.safe_open([path], framework="pt", device=str(device)) as file:
        return {name: tensor.clone() for name, tensor in file.tensors()}


def same(loaded: torch.Tensor, expected: torch.Tensor) -> bool:
    return loaded.dtype == expected.dtype and torch.equal(
        loaded.cpu().view(torch.uint8), expected.view(torch.uint8)
    )


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
    tensorizer_ops.keys.add("gpu benchmark", key=os.urandom(32))
    key = {"key": "named:gpu benchmark"}
    yield (
        lambda: tensorizer_ops.save(path, state, hashes="none", options=key),
        {"us, encrypted": lambda: load(path, options=key)},
    )
    yield (
        lambda: tensorizer_ops.save(path, state),
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


class Rounds:
    """Measures in rounds, and fills rows. A work that has failed once is not tried again."""

    def __init__(self, device: torch.device, rounds: int, state: State, size: int) -> None:
        self.rows: Rows = {}
        self._device, self._rounds, self._state, self._size = device, rounds, state, size

    def measure(self, works: Works) -> None:
        for number in range(self._rounds + 1):  # the first one is a warm-up, and is checked
            for name, work in works.items():
                row = self.rows.setdefault(name, Row(self._size))
                if not row.error:
                    try:
                        self._measure(name, row, work, number > 0)
                    except Exception as error:  # a library may fail here in any way
                        row.error = f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"

    def _measure(self, name: str, row: Row, work: Callable[[], object], counts: bool) -> None:
        gc.collect()
        torch.accelerator.synchronize(self._device)
        start = time.perf_counter()
        done = work()
        torch.accelerator.synchronize(self._device)
        seconds = time.perf_counter() - start
        if counts:
            row.warm.append(seconds)
        elif isinstance(done, dict) and name != LIMIT:
            wrong = [key for key, tensor in self._state.items() if not same(done[key], tensor)]
            if wrong:
                raise ValueError(f"loaded {wrong[0]} wrongly")


def run(title: str, state: State, rounds: Rounds, device: torch.device, folder: Path) -> Rows:
    path, theirs = folder / "m.tensors", folder / "m.safetensors"
    for save, loads in files(path, theirs, state, device):
        try:
            save()
        except ImportError:
            continue  # safetensors is not installed
        rounds.measure({LIMIT: pinned_copy(state, device), **loads})
        # At once, so that a program that is stopped has not worked in vain.
        shown = {name: rounds.rows[name] for name in (LIMIT, *loads)}
        print(tables.of_rows(title, shown), end="\n\n", flush=True)
        for file in (path, theirs):
            file.unlink(missing_ok=True)
    there = {name: tensor.to(device) for name, tensor in state.items()}

    def save_all() -> None:
        tensorizer_ops.save(path, there)

    saves: Works = {
        "us, save hashes=all": save_all,
        "us, save hashes=none": lambda: tensorizer_ops.save(path, there, hashes="none"),
        "torch.save": lambda: torch.save(there, path),
        "safetensors, save": lambda: SAFETENSORS.save(there, str(theirs)),
    }
    rounds.measure(saves)
    save_all()
    if not all(same(tensor, state[name]) for name, tensor in tensorizer_ops.load(path).items()):
        rounds.rows["us, save hashes=all"].error = "saved wrongly"
    print(tables.of_rows(title, {name: rounds.rows[name] for name in saves}), end="\n\n")
    return rounds.rows


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--size", type=float, metavar="GIB", help="of the large workload: 4")
    names = ("large", "transformer")
    arguments.add_argument("--workloads", nargs="+", choices=names, default=names)
    arguments.add_argument("--device", help="the current accelerator by default")
    given = arguments.parse_args()
    device = torch.device(given.device or torch.accelerator.current_accelerator() or "cpu")
    if device.type == "cpu":
        sys.exit("there is no accelerator here: benchmarks.local.run measures the CPU")
    try:
        torch.ones(1, device=device)
    except Exception as error:  # each backend has its own
        sys.exit(f"cannot use {device}: {str(error).splitlines()[0]}")
    gc.freeze()  # collections between rounds need not visit the modules

    def measure(folder: Path) -> Found:
        found: Found = {}
        gib = given.size or (0.03 if given.quick else 4)
        shapes = workloads.of_mib(max(1, round(gib * 32)), 32)
        large = replace(workloads.LARGE, shapes=lambda _: shapes)
        for name, workload in zip(names, (large, workloads.TRANSFORMER), strict=True):
            if name in given.workloads:
                state = workloads.make(workload, given.quick)
                rounds = Rounds(device, given.rounds or 5, state, workload.bytes(given.quick))
                found[name] = run(name, state, rounds, device, folder)
        return {**found, "device": str(device)}

    found = perform(given, "", measure)
    print(tables.of_targets(TARGETS, found))


if __name__ == "__main__":
    main()
