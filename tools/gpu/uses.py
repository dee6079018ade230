"""Tries what programs do with a GPU while, before and after they load: uses.py USE

    graph     loads while a captured graph is replayed
    streams   loads on two threads, each with a stream of its own
    compile   compiles a model with CUDA graphs that was just loaded, and loads it again
    register  compares copies out of /dev/shm, with and without cudaHostRegister, with a load
    cufile    looks for cuFile, which reads from disks into memory of a GPU

Fails if a value is wrong. What else it finds, it prints.
"""

from __future__ import annotations

import ctypes
import glob
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

import tensorizer_ops

Tensors = dict[str, torch.Tensor]

COUNT = 64
SIZE = 32 << 20  # bytes of one tensor


def make(seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {
        str(i): torch.randint(0, 256, (SIZE,), dtype=torch.uint8, generator=generator)
        for i in range(COUNT)
    }


def check(found: Tensors, expected: Tensors) -> None:
    for name, tensor in expected.items():
        assert torch.equal(found[name].cpu(), tensor), f"tensor {name} has other values"


def speed(work: Callable[[], object]) -> float:
    """Return GB/s of a second call."""
    work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return COUNT * SIZE / (time.perf_counter() - start) / 1e9


def graph(folder: Path) -> None:
    path, state = folder / "m.tensors", make(1)
    tensorizer_ops.save(path, state, hashes="chunked")

    def load() -> Tensors:
        return tensorizer_ops.load(path, device="cuda", verify="all")

    weight = torch.randn(4096, 4096, device="cuda")
    value = torch.randn(4096, 4096, device="cuda")
    captured = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        (value @ weight).relu()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(captured):
        result = (value @ weight).relu()
    expected = (value @ weight).relu()
    print(f"alone: {speed(load):.1f} GB/s")
    stop = threading.Event()
    replays = 0

    def replay() -> None:
        nonlocal replays
        with torch.cuda.stream(stream):
            while not stop.is_set():
                captured.replay()
                stream.synchronize()
                replays += 1

    thread = threading.Thread(target=replay)
    thread.start()
    try:
        print(f"beside a graph: {speed(load):.1f} GB/s, {replays} replays")
        check(load(), state)
    finally:
        stop.set()
        thread.join()
    assert replays > 0 and torch.allclose(result, expected), "the graph computes other values"


def streams(folder: Path) -> None:
    states = [make(seed) for seed in (1, 2)]
    paths = [folder / f"{i}.tensors" for i in range(2)]
    for path, state in zip(paths, states, strict=True):
        tensorizer_ops.save(path, state, hashes="chunked")
    loaded: list[Tensors] = [{}, {}]
    errors: list[Exception] = []

    def load(i: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                loaded[i] = tensorizer_ops.load(paths[i], device="cuda", verify="all")
                # What follows in the stream finds the values.
                loaded[i] = {name: tensor.clone() for name, tensor in loaded[i].items()}
                torch.cuda.current_stream().synchronize()
        except Exception as error:  # reported on the main thread
            errors.append(error)

    def both() -> None:
        threads = [threading.Thread(target=load, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    print(f"one after the other: {speed(lambda: load(0)):.1f} GB/s")
    print(f"both at once: {2 * speed(both):.1f} GB/s")
    if errors:
        raise errors[0]
    for found, state in zip(loaded, states, strict=True):
        check(found, state)


def compiled(folder: Path) -> None:
    def model(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(1024, 1024) for _ in range(8)]
        return torch.nn.Sequential(*layers)

    for seed in (1, 2):
        tensorizer_ops.save(folder / f"{seed}.tensors", model(seed).state_dict())
    with torch.device("meta"):
        loaded = model(1)
    loaded.to_empty(device="cuda")
    run = torch.compile(loaded, mode="reduce-overhead")
    value = torch.randn(64, 1024, device="cuda")
    with torch.no_grad():
        for seed in (1, 2, 1):
            start = time.perf_counter()
            tensorizer_ops.load_into(loaded, folder / f"{seed}.tensors")
            torch.cuda.synchronize()
            milliseconds = 1e3 * (time.perf_counter() - start)
            expected = model(seed).cuda()(value)
            for _ in range(4):  # warms up, records the graph, and replays it
                torch.compiler.cudagraph_mark_step_begin()
                assert torch.allclose(run(value), expected, atol=1e-3), f"weights {seed} differ"
            print(f"weights {seed}: loaded in {milliseconds:.1f} ms, used by the graph")


def register(folder: Path) -> None:
    size = COUNT * SIZE
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(size)
        mapped = torch.from_file(file.name, shared=True, size=size, dtype=torch.uint8)
        mapped.random_(0, 256)
        there = torch.empty(size, dtype=torch.uint8, device="cuda")
        print(f"mapped: {speed(lambda: there.copy_(mapped)):.1f} GB/s")
        start = time.perf_counter()
        runtime = torch.cuda.cudart()
        status = int(runtime.cudaHostRegister(mapped.data_ptr(), size, 0))
        seconds = time.perf_counter() - start
        print(
            f"cudaHostRegister: {seconds:.3f} s, {size / seconds / 1e9:.1f} GB/s, status {status}"
        )
        if status == 0:
            copy = speed(lambda: there.copy_(mapped, non_blocking=True))
            whole = size / (seconds + size / copy / 1e9) / 1e9
            print(f"registered: {copy:.1f} GB/s, {whole:.1f} with cudaHostRegister")
            runtime.cudaHostUnregister(mapped.data_ptr())
        assert torch.equal(there.cpu(), mapped), "the copy differs"
        path = Path(file.name + ".tensors")
        try:
            tensorizer_ops.save(path, {"all": mapped}, hashes="none")
            load = speed(lambda: tensorizer_ops.load(path, device="cuda"))
            print(f"tensorizer_ops.load: {load:.1f} GB/s")
        finally:
            path.unlink(missing_ok=True)


def cufile(folder: Path) -> None:
    packages = f"{sysconfig.get_path('purelib')}/nvidia/*/lib/libcufile.so*"
    for name in ("libcufile.so.0", "libcufile.so", *glob.glob(packages)):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        version = ctypes.c_int(0)
        library.cuFileGetVersion(ctypes.byref(version))
        print(f"cuFile is there: {name}, version {version.value}")
        break
    else:
        print("cuFile is not there")
    driver = Path("/proc/driver/nvidia-fs/version")
    print(driver.read_text().strip() if driver.exists() else "its driver, nvidia-fs, is not there")


USES = {f.__name__: f for f in (graph, streams, register, cufile)} | {"compile": compiled}


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] not in USES:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        USES[sys.argv[1]](Path(folder))


if __name__ == "__main__":
    main()
