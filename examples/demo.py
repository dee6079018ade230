"""Compares saves and loads of tensorizer_ops, torch, safetensors and tensorizer.

Run it with `make demo`, or in any environment that has tensorizer_ops. safetensors and tensorizer
are included if they are installed. All files are in a temporary directory of up to 2 GB, which is
removed at the end (TMPDIR sets its location).

Each measurement runs in its own process, so that none reuses the memory of another. Files are in
the page cache, each library uses its default settings, and saves do not wait for the disk. In the
last round, every byte is compared with the model.
"""

from __future__ import annotations

import importlib
import mmap
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

import torch

import tensorizer_ops

State = dict[str, torch.Tensor]

ROUNDS = 3
THREADS = torch.get_num_threads()
FORK = multiprocessing.get_context("fork")


# -- the libraries ---------------------------------------------------------------------------------


def torch_load(path: str) -> State:
    return torch.load(path, weights_only=True)


def torch_load_mapped(path: str) -> State:
    return torch.load(path, weights_only=True, mmap=True)


def safetensors_load(path: str) -> State:
    from safetensors.torch import load_file

    return load_file(path)


def safetensors_save(state: State, path: str) -> None:
    from safetensors.torch import save_file

    save_file(state, path)


def tensorizer_load(path: str, verify: bool = False) -> State:
    from tensorizer import TensorDeserializer

    with TensorDeserializer(path, device="cpu", verify_hash=verify) as deserializer:
        return dict(deserializer.items())


def tensorizer_load_verified(path: str) -> State:
    return tensorizer_load(path, verify=True)


def tensorizer_save(state: State, path: str) -> None:
    from tensorizer import TensorSerializer

    serializer = TensorSerializer(path)
    serializer.write_state_dict(state)
    serializer.close()


@dataclass(frozen=True)
class Way:
    """One way to load or to save. The last one of each group uses tensorizer_ops."""

    group: str
    name: str
    suffix: str
    load: Callable[[str], State] | None = None
    save: Callable[[State, str], None] | None = None
    module: str = "torch"


COPIED = "Load into new memory"
VERIFIED = "Load into new memory, and verify every SHA-256"
MAPPED = "Load without a copy (memory-mapped), then touch every page"
SAVED_SHA256 = "Save with CRC32 and SHA-256"
SAVED_CRC32 = "Save with CRC32"

WAYS = [
    Way(COPIED, "torch.load", ".pt", load=torch_load),
    Way(COPIED, "tensorizer", ".tensors", load=tensorizer_load, module="tensorizer"),
    Way(
        COPIED,
        "tensorizer_ops, copy=True",
        ".ours.tensors",
        load=lambda path: tensorizer_ops.load(path, copy=True),
    ),
    Way(
        VERIFIED,
        "tensorizer, verify_hash=True",
        ".tensors",
        load=tensorizer_load_verified,
        module="tensorizer",
    ),
    Way(
        VERIFIED,
        'tensorizer_ops, copy=True, verify="all"',
        ".ours.tensors",
        load=lambda path: tensorizer_ops.load(path, copy=True, verify="all"),
    ),
    Way(MAPPED, "torch.load, mmap=True", ".pt", load=torch_load_mapped),
    Way(MAPPED, "safetensors", ".safetensors", load=safetensors_load, module="safetensors"),
    Way(MAPPED, "tensorizer_ops", ".ours.tensors", load=tensorizer_ops.load),
    Way(SAVED_SHA256, "tensorizer", ".tensors", save=tensorizer_save, module="tensorizer"),
    Way(
        SAVED_SHA256,
        "tensorizer_ops",
        ".ours.tensors",
        save=lambda state, path: tensorizer_ops.save(path, state),
    ),
    Way(SAVED_CRC32, "torch.save", ".pt", save=torch.save),
    Way(
        SAVED_CRC32,
        'tensorizer_ops, hashes="crc32"',
        ".ours.tensors",
        save=lambda state, path: tensorizer_ops.save(path, state, hashes="crc32"),
    ),
]

# SAVERS write the files to load, and LOADERS check the files that were saved.
SAVERS: dict[str, Callable[[State, str], None]] = {
    ".safetensors": safetensors_save,
    **{way.suffix: way.save for way in reversed(WAYS) if way.save is not None},
}
LOADERS: dict[str, Callable[[str], State]] = {
    way.suffix: way.load for way in reversed(WAYS) if way.load is not None
}


# -- measuring -------------------------------------------------------------------------------------


def check(state: State, expected: State) -> None:
    """Raise an error unless both have the same names, shapes, element types and bytes."""
    if state.keys() != expected.keys():
        raise AssertionError("the loaded names differ from the saved ones")
    for name, tensor in expected.items():
        other = state[name].detach()
        if other.dtype != tensor.dtype or not torch.equal(other, tensor):
            raise AssertionError(f"{name} differs from the saved tensor")


def touch(state: State) -> int:
    """Read one byte of every page, which makes the system map it."""
    sums = [t.detach().view(-1).view(torch.uint8)[::4096].sum() for t in state.values()]
    return int(torch.stack(sums).sum())


def have_memory_at_hand(size: int) -> None:
    """Allocate memory, touch it and free it.

    A virtual machine may have returned free memory to its host. Getting it back takes longer than a
    load, and must not be part of a measurement.
    """
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1


def measure(way: Way, path: str, state: State, last: bool) -> tuple[float, float]:
    """Return the seconds until the call returns, and until every page is touched as well."""
    if way.group != MAPPED:
        have_memory_at_hand(sum(tensor.nbytes for tensor in state.values()) * 9 // 8)
    tiny = {"tiny": torch.ones(8)}
    tiny_path = path + ".tiny"
    if way.load is not None:
        SAVERS[way.suffix](tiny, tiny_path)
        way.load(tiny_path)  # imports and set-up are not part of the measurement
        start = perf_counter()
        loaded = way.load(path)
        returned = perf_counter()
        touch(loaded)
        touched = perf_counter()
        if last:
            check(loaded, state)
    else:
        assert way.save is not None
        way.save(tiny, tiny_path)
        start = perf_counter()
        way.save(state, path)
        returned = touched = perf_counter()
        if last:
            check(LOADERS[way.suffix](path), state)
    os.unlink(tiny_path)
    return returned - start, touched - start


def in_a_process(work: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    def child(pipe: Connection) -> None:
        torch.set_num_threads(THREADS)
        pipe.send(work())

    here, there = FORK.Pipe(duplex=False)
    process = FORK.Process(target=child, args=(there,))
    process.start()
    there.close()
    try:
        result: tuple[float, float] = here.recv()
    except EOFError:
        raise SystemExit("a measurement failed: see the error above") from None
    process.join()
    return result


def compare(ways: list[Way], directory: Path, state: State) -> None:
    """Measure the ways of one group in turn, and print the best result of each."""
    size = sum(tensor.nbytes for tensor in state.values()) / 1e9
    best: dict[Way, tuple[float, float]] = {}
    for round_ in range(ROUNDS):
        for way in ways:
            path = directory / (("loaded" if way.load else "saved") + way.suffix)
            last = round_ == ROUNDS - 1
            times = in_a_process(partial(measure, way, str(path), state, last))
            best[way] = min(best.get(way, times), times, key=max)
            if way.save is not None:
                path.unlink()
    print_table(ways[0].group, best, size)


def print_table(group: str, best: dict[Way, tuple[float, float]], size: float) -> None:
    """Print one row for each way, compared with the last one, which uses tensorizer_ops."""
    mapped = group == MAPPED
    ours = list(best.values())[-1]
    counts = 1 if mapped else 0  # a mapping costs time when its pages are touched
    print(f"\n{group}")
    first = "returns after" if mapped else ""
    print(f"  {'':42}{first:>14}{'seconds':>9}{'GB/s':>8}  tensorizer_ops is")
    for way, times in best.items():
        first = f"{1000 * times[0]:.1f} ms" if mapped else ""
        row = f"  {way.name:42}{first:>14}{times[counts]:9.3f}{size / times[counts]:8.2f}"
        ratio = times[counts] / ours[counts]
        print(row if times is ours else f"{row}  {ratio:.1f} times as fast")


# -- the demo --------------------------------------------------------------------------------------


def build_model() -> torch.nn.Module:
    """Six transformer layers with 300 MB of weights."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        *(
            torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0, batch_first=True)
            for _ in range(6)
        )
    ).eval()


def show_a_restored_model(model: torch.nn.Module, path: str) -> None:
    with torch.device("meta"):
        restored = build_model()
    start = perf_counter()
    restored.load_state_dict(tensorizer_ops.load(path), assign=True)
    seconds = perf_counter() - start
    x = torch.rand(1, 8, 1024)
    with torch.inference_mode():
        same = torch.equal(restored(x), model(x))
    assert same, "the output of the restored model differs"
    print(f"\nA new model was filled in {1000 * seconds:.1f} ms, and its output is the same.")


def show_files_going_both_ways(directory: Path, state: State) -> None:
    check(tensorizer_ops.load(directory / "loaded.tensors", verify="all"), state)
    check(tensorizer_load(str(directory / "loaded.ours.tensors"), verify=True), state)
    print(
        "\ntensorizer_ops loaded a file of tensorizer, and tensorizer one of tensorizer_ops:"
        "\nall hashes are correct, and all bytes are equal."
    )


class ScriptedLoader(torch.nn.Module):
    def forward(self, path: str, x: torch.Tensor) -> torch.Tensor:
        weights = torch.ops.tensorizer.load(path, names=["0.linear1.weight", "0.linear1.bias"])
        return torch.nn.functional.linear(x, weights["0.linear1.weight"], weights["0.linear1.bias"])


def show_torchscript(directory: Path, state: State) -> None:
    script = str(directory / "loader.pt")
    torch.jit.script(ScriptedLoader()).save(script)
    scripted = torch.jit.load(script)
    x = torch.rand(2, 1024)
    y = scripted(str(directory / "loaded.ours.tensors"), x)
    expected = torch.nn.functional.linear(x, state["0.linear1.weight"], state["0.linear1.bias"])
    assert torch.equal(y, expected), "the output of the scripted loader differs"
    print("\nTorchScript: a scripted module, saved and reloaded, loaded two weights itself.")


def is_here(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(f"{module} is not included: {error}")
        return False
    return True


def main() -> None:
    # A thread pool does not survive a fork. Each measured process creates its own.
    torch.set_num_threads(1)
    modules = [name for name in ("torch", "safetensors", "tensorizer") if is_here(name)]
    ways = [way for way in WAYS if way.module in modules]
    model = build_model()
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    size = sum(tensor.nbytes for tensor in state.values())
    print(
        f"A model of {size / 1e6:.0f} MB in {len(state)} tensors, {os.cpu_count()} CPUs, "
        f"torch {torch.__version__}, best of {ROUNDS} rounds"
    )
    with tempfile.TemporaryDirectory(prefix="tensorizer-demo-") as name:
        directory = Path(name)
        for suffix in {way.suffix: None for way in ways if way.load}:
            SAVERS[suffix](state, str(directory / f"loaded{suffix}"))
        os.sync()
        for group in dict.fromkeys(way.group for way in ways):
            compare([way for way in ways if way.group == group], directory, state)
        torch.set_num_threads(THREADS)
        show_a_restored_model(model, str(directory / "loaded.ours.tensors"))
        if "tensorizer" in modules:
            show_files_going_both_ways(directory, state)
        show_torchscript(directory, state)


if __name__ == "__main__":
    main()
