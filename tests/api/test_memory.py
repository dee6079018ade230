"""Loads and saves take less than 64 MiB of memory beyond the tensors themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.process import fork_python

# Runs in a separate interpreter, because peak resident memory is counted per process.
PREAMBLE = """
import gc, os, sys, torch, tensorizer_ops

ops = torch.ops.tensorizer
path = sys.argv[1]
fifo, new = path + ".fifo", path + ".new"
SIZE = 96 << 20
failures = []


def status(field):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) << 10


def beyond(name, work, results=0):
    "Notes a failure if `work` takes more at its peak than its `results` and 64 MiB."
    gc.collect()
    before = status("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")  # resets the peak
    work()
    extra = (status("VmHWM") - before - results) >> 20
    if extra >= 64:
        failures.append(f"{name}: {extra} MiB")


def in_a_child(work):
    if os.fork() == 0:
        work()
        os._exit(0)


def feed():
    os.mkfifo(fifo)
    def work():
        with open(path, "rb") as source, open(fifo, "wb") as target:
            while data := source.read(1 << 20):
                target.write(data)
    in_a_child(work)


def drain():
    os.mkfifo(fifo)
    def work():
        with open(fifo, "rb") as stream:
            while stream.read(1 << 20):
                pass
    in_a_child(work)


# One tensor of half the size, and four of an eighth.
tensors = {"large": torch.ones(3072, 4096)}
tensors |= {str(i): torch.full((12 << 18,), float(i)) for i in range(4)}
ops.save(path, tensors)
del tensors
ops.load(path, names=["0"], copy=True, verify="all", dtype=torch.float64)
"""

LOADS = """
beyond("load by copy", lambda: ops.load(path, copy=True), SIZE)
beyond("load by copy, verified", lambda: ops.load(path, copy=True, verify="all"), SIZE)
beyond("load and widen", lambda: ops.load(path, dtype=torch.float64, copy=True), 2 * SIZE)
beyond("load and narrow", lambda: ops.load(path, dtype=torch.float16, verify="all"), SIZE // 2)
feed()
beyond("load from a pipe", lambda: ops.load(fifo, verify="all"), SIZE)
os.unlink(fifo)
feed()
beyond("verify a pipe", lambda: ops.verify(fifo))
os.unlink(fifo)
out = {n: torch.ones(t.shape) for n, t in ops.load(path, device="meta").items()}
beyond("load_into", lambda: ops.load_into(path, list(out), list(out.values()), verify="all"))
out = {n: torch.ones(t.shape[::-1]).t() if t.dim() == 2 else torch.ones(len(t), 2)[:, 0]
       for n, t in out.items()}
beyond("load_into, not contiguous", lambda: ops.load_into(path, list(out), list(out.values())))
beyond("load_into, not contiguous, verified",
       lambda: ops.load_into(path, list(out), list(out.values()), verify="all"))
"""

SAVES = """
x = torch.ones(SIZE // 16384, 4096)
beyond("save", lambda: ops.save(new, {"x": x}))
beyond("save, transposed", lambda: ops.save(new, {"x": x.t()}))
beyond("save, transposed, crc32", lambda: ops.save(new, {"x": x.t()}, hashes="crc32"))
beyond("save, expanded", lambda: ops.save(new, {"x": x[:1].expand(SIZE // 16384, 4096)}))
beyond("save, every second", lambda: ops.save(new, {"x": x.view(-1)[::2], "y": x.view(-1)[1::2]}))
beyond("save, conjugated", lambda: ops.save(new, {"x": x.view(torch.complex64).conj()}))
beyond("save, many", lambda: ops.save(new, {str(i): x[:, i :: 64] for i in range(64)}))
drain()
beyond("save to a pipe", lambda: ops.save(fifo, {"x": x, "y": x.t()}))
os.unlink(fifo)


def write():
    writer = torch.classes.tensorizer.Writer(new, None)
    writer.add("x", x)
    writer.add("y", x.t())
    writer.close()


beyond("writer", write)
"""


@pytest.mark.parametrize("code", [LOADS, SAVES], ids=["loads", "saves"])
def test_peak(tmp_path: Path, code: str) -> None:
    fork_python(PREAMBLE + code + "\nassert not failures, failures\n", str(tmp_path / "model"))
