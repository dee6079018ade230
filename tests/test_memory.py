"""Memory beyond the tensors themselves stays under 64 MiB, whatever is loaded or saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from process import run_python

ops = torch.ops.tensorizer

# Peak resident memory is per process, so each case has an interpreter of its own.
MEASURE = """
import os, sys, torch, tensorizer_ops

ops = torch.ops.tensorizer
path = sys.argv[1]
SIZE = 192 << 20


def status(field):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) << 10


def beyond(work, tensors):
    "What `work` takes at its peak beyond what was there before and `tensors` bytes of results."
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    result = work()
    # Pages of a mapped file belong to the file.
    extra = status("VmHWM") - before - tensors
    print(f"{extra / (1 << 20):.1f} MiB", file=sys.stderr)
    assert extra < 64 << 20, extra / (1 << 20)
    return result


ops.save(path + ".warm", {"x": torch.ones(4096, 64).t()})
ops.load(path + ".warm", copy=True, verify="all", dtype=torch.float64)
"""

CASES = {
    "load by copy": "beyond(lambda: ops.load(path, copy=True), SIZE)",
    "load by copy, verified": "beyond(lambda: ops.load(path, copy=True, verify='all'), SIZE)",
    "load and widen": "beyond(lambda: ops.load(path, dtype=torch.float64, copy=True), 2 * SIZE)",
    "load and narrow": "beyond(lambda: ops.load(path, dtype=torch.float16, copy=True), SIZE // 2)",
    "load_into": """
out = {n: torch.ones(ops.load(path)[n].shape) for n in ops.names(path)}
beyond(lambda: ops.load_into(path, list(out), list(out.values()), verify="all"), 0)
""",
    "load_into, not contiguous": """
out = {n: torch.ones(t.shape[::-1]).t() if t.dim() == 2 else torch.ones(len(t), 2)[:, 0]
       for n, t in ops.load(path).items()}
beyond(lambda: ops.load_into(path, list(out), list(out.values())), 0)
""",
    "verify from a pipe": """
os.mkfifo(path + ".fifo")
if os.fork() == 0:
    data = open(path, "rb").read()
    open(path + ".fifo", "wb").write(data)
    os._exit(0)
beyond(lambda: ops.verify(path + ".fifo"), 0)
""",
    "load from a pipe": """
os.mkfifo(path + ".fifo")
if os.fork() == 0:
    data = open(path, "rb").read()
    open(path + ".fifo", "wb").write(data)
    os._exit(0)
beyond(lambda: ops.load(path + ".fifo", verify="all"), SIZE)
""",
    "save": """
x = {"a": torch.ones(SIZE // 8), "b": torch.ones(SIZE // 8)}
beyond(lambda: ops.save(path + ".new", x), 0)
""",
    "save, transposed": """
x = {"a": torch.ones(SIZE // 4 // 4096, 4096).t()}
beyond(lambda: ops.save(path + ".new", x), 0)
""",
    "save, every second": """
x = {"a": torch.ones(SIZE // 4, 2)[:, 0]}
beyond(lambda: ops.save(path + ".new", x), 0)
""",
    "save, conjugated": """
x = {"a": torch.ones(SIZE // 8, dtype=torch.complex64).conj()}
beyond(lambda: ops.save(path + ".new", x), 0)
""",
    "save, expanded": """
x = {"a": torch.ones(1, 4096).expand(SIZE // 4 // 4096, 4096)}
beyond(lambda: ops.save(path + ".new", x), 0)
""",
    "save to a pipe": """
os.mkfifo(path + ".fifo")
if os.fork() == 0:
    with open(path + ".fifo", "rb") as stream:
        while stream.read(1 << 20):
            pass
    os._exit(0)
x = {"a": torch.ones(SIZE // 8), "b": torch.ones(4096, SIZE // 8 // 4096).t()}
beyond(lambda: ops.save(path + ".fifo", x), 0)
""",
    "writer": """
x = torch.ones(4096, SIZE // 4 // 4096).t()
def write():
    writer = torch.classes.tensorizer.Writer(path + ".new", None)
    writer.add("x", x)
    writer.close()
beyond(write, 0)
""",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file for all: a tensor that takes half of it, and 24 MiB, one-dimensional, four times."""
    directory = tmp_path_factory.mktemp("memory")
    tensors = {"large": torch.ones(6144, 4096)}
    tensors |= {str(index): torch.full((6 << 20,), float(index)) for index in range(4)}
    ops.save(str(directory / "model.tensors"), tensors)
    return directory


@pytest.mark.parametrize("code", CASES.values(), ids=CASES)
def test_peak(directory: Path, tmp_path: Path, code: str) -> None:
    path = tmp_path / "model.tensors"
    path.symlink_to(directory / "model.tensors")
    run_python(MEASURE + code, str(path))
