"""Compares loads onto a device and saves from it with other libraries and with the limit.

    python gpu.py [--quick] [--size GIB] [--workloads large] [--directory FOLDER] [--json FILE]

The files are in the page cache, one at a time. The limit, which no loader can beat, is a copy from
pinned memory that is already allocated to tensors of the same shapes; it is measured beside every
file. A load ends when its values are on the device; every loaded byte is compared with the
original, outside of the timing. A library that is not installed, or does not support the device,
gets a row that says so. GB are 10^9 bytes. Targets compare the best rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import tensorizer_ops
from benchmarks.harness import workloads

State = dict[str, torch.Tensor]
Loads = dict[str, Callable[[], object]]
PINNED_PIECE = 32 << 20
LIMIT = "limit, pinned copy"
# The lowest acceptable speed of a row as a fraction of the limit, by workload.
TARGETS = {
    "us": {"large": 0.95, "transformer": 0.9},
    "us, chunks verified": {"large": 0.9, "transformer": 0.9},
    "us, encrypted": {"large": 0.8, "transformer": 0.8},
}
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


def tensorizer_load(path: Path, device: torch.device) -> State:
    from tensorizer import TensorDeserializer

    with TensorDeserializer(str(path), device=device) as deserializer:
        return dict(deserializer.items())


def safetensors_load(path: Path, device: torch.device) -> State:
    from safetensors.torch import load_file

    return load_file(path, device=str(device))


def fastsafetensors_load(path: Path, device: torch.device) -> State:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), str(device))
    loader.add_filenames({0: [str(path)]})
    buffer = loader.copy_files_to_device()
    return {name: buffer.get_tensor(name) for name in buffer.key_to_rank_lidx}


def instanttensor_load(path: Path, device: torch.device) -> State:
    import instanttensor

    with instanttensor.safe_open([str(path)], framework="pt", device=str(device)) as file:
        return {name: tensor.clone() for name, tensor in file.tensors()}


def streamer_load(path: Path, device: torch.device) -> State:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(str(path), device=str(device))
        return dict(streamer.get_tensors())


def safetensors_save(state: State, path: Path) -> None:
    from safetensors.torch import save_file

    save_file(state, path)


class Rows:
    """The seconds of each measurement by name, and the reasons of those that failed.

    Prints what was measured at once, so that a program that is stopped has not worked in vain.
    """

    def __init__(self, device: torch.device, repeat: int, size: int) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.errors: dict[str, str] = {}
        self._device = device
        self._repeat = repeat
        self._size = size

    def measure(self, works: dict[str, Callable[[], object]], check: State | None) -> None:
        for number in range(self._repeat + 1):  # the first one is a warm-up, and is checked
            for name, work in works.items():
                if name not in self.errors:
                    self._attempt(name, work, number, check)
        for name in works:
            print(f"  {name:24} {self._speeds(name)}", flush=True)

    def _speeds(self, name: str) -> str:
        if name in self.errors:
            return self.errors[name]
        seconds = self.seconds[name]
        speeds = (self._size / f(seconds) / 1e9 for f in (statistics.median, min))
        return " ".join(f"{speed:8.2f}" for speed in speeds)

    def _attempt(
        self, name: str, work: Callable[[], object], number: int, check: State | None
    ) -> None:
        gc.collect()
        torch.accelerator.synchronize(self._device)
        try:
            start = time.perf_counter()
            done = work()
            torch.accelerator.synchronize(self._device)
            seconds = time.perf_counter() - start
        except Exception as error:  # a library may fail here in any way
            self.errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
            return
        if number > 0:
            self.seconds.setdefault(name, []).append(seconds)
        elif check is not None and name != LIMIT:
            assert isinstance(done, dict)
            if wrong := [key for key, tensor in check.items() if not same(done[key], tensor)]:
                self.errors[name] = f"loaded {wrong[0]} wrongly"


def same(loaded: torch.Tensor, expected: torch.Tensor) -> bool:
    return loaded.dtype == expected.dtype and torch.equal(
        loaded.cpu().view(torch.uint8), expected.view(torch.uint8)
    )


def large(size: float) -> workloads.Workload:
    """Return a workload of so many GiB in tensors of 32 MiB."""
    shapes = workloads.of_32_mib(max(1, round(size * 32)))
    return workloads.Workload(
        "large", f"{size:g} GiB in tensors of 32 MiB", torch.float32, lambda quick: shapes
    )


def files(
    path: Path, theirs: Path, state: State, device: torch.device
) -> Iterator[tuple[Callable[[], object], Loads]]:
    """Yield functions that save the state to one of the paths, with the loads to measure of it."""
    yield (
        lambda: tensorizer_ops.save(path, state, hashes="chunked", options=CHUNKS),
        {
            "us": lambda: tensorizer_ops.load(path, device=device),
            "us, chunks verified": lambda: tensorizer_ops.load(path, device=device, verify="all"),
        },
    )
    tensorizer_ops.keys.add("gpu benchmark", key=os.urandom(32))
    key = {"key": "named:gpu benchmark"}
    yield (
        lambda: tensorizer_ops.save(path, state, hashes="none", options=key),
        {"us, encrypted": lambda: tensorizer_ops.load(path, device=device, options=key)},
    )
    yield (
        lambda: tensorizer_ops.save(path, state),
        {
            "us, SHA-256 of tensors": lambda: tensorizer_ops.load(
                path, device=device, verify="all"
            ),
            "tensorizer": lambda: tensorizer_load(path, device),
        },
    )
    yield (
        lambda: safetensors_save(state, theirs),
        {
            "us, safetensors": lambda: tensorizer_ops.load(theirs, device=device),
            "safetensors": lambda: safetensors_load(theirs, device),
            "fastsafetensors": lambda: fastsafetensors_load(theirs, device),
            "InstantTensor": lambda: instanttensor_load(theirs, device),
            "Run:ai streamer": lambda: streamer_load(theirs, device),
        },
    )


def run(state: State, rows: Rows, device: torch.device, directory: Path) -> None:
    path, theirs = directory / "m.tensors", directory / "m.safetensors"
    for save, loads in files(path, theirs, state, device):
        try:
            save()
        except ImportError:
            rows.errors.update(dict.fromkeys(loads, "safetensors is not installed"))
        rows.measure({LIMIT: pinned_copy(state, device), **loads}, state)
        for file in (path, theirs):
            file.unlink(missing_ok=True)
    there = {name: tensor.to(device) for name, tensor in state.items()}
    saves: Loads = {
        "us, save hashes=all": lambda: tensorizer_ops.save(path, there),
        "us, save hashes=none": lambda: tensorizer_ops.save(path, there, hashes="none"),
        "torch.save": lambda: torch.save(there, path),
        "safetensors, save": lambda: safetensors_save(there, theirs),
    }
    rows.measure(saves, None)
    tensorizer_ops.save(path, there)
    if not all(same(tensor, state[name]) for name, tensor in tensorizer_ops.load(path).items()):
        rows.errors["us, save hashes=all"] = "saved wrongly"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small files: a smoke test")
    parser.add_argument("--size", type=float, metavar="GIB", help="of the large workload: 4")
    workload_names = ("large", "transformer")
    parser.add_argument("--workloads", nargs="+", choices=workload_names, default=workload_names)
    parser.add_argument("--directory", type=Path, help="for the files; a temporary one by default")
    parser.add_argument("--device", help="the current accelerator by default")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device or torch.accelerator.current_accelerator() or "cpu")
    if device.type == "cpu":
        parser.error("there is no accelerator here: benchmarks/local/run.py measures the CPU")
    try:
        torch.ones(1, device=device)
    except Exception as error:  # each backend has its own
        parser.error(f"cannot use {device}: {str(error).splitlines()[0]}")
    gc.freeze()  # collections between rounds need not visit the modules
    results: dict[str, object] = {}
    quick = arguments.quick
    for workload in (
        large(arguments.size or (0.03 if quick else 4)),
        workloads.WORKLOADS["transformer"],
    ):
        name, size = workload.name, workload.bytes(quick)
        if name not in arguments.workloads:
            continue
        print(f"{workload.title} ({size / (1 << 20):,.0f} MiB), GB/s: median, best", flush=True)
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            state = workloads.make(workload, quick)
            rows = Rows(device, arguments.repeat, size)
            run(state, rows, device, Path(directory))
        limit = rows.seconds.get(LIMIT)
        for row in (row for row in TARGETS if limit and row in rows.seconds):
            ratio = min(limit) / min(rows.seconds[row])
            target = TARGETS[row][name]
            met = "met" if ratio >= target else "NOT MET"
            print(f"  {row}, against the limit: {ratio:.2f}, at least {target}: {met}")
        print()
        results[name] = {"bytes": size, "seconds": rows.seconds, "errors": rows.errors}
    if arguments.json:
        about = {"device": str(device), "torch": torch.__version__, "host": platform.machine()}
        arguments.json.write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
