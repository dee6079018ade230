"""When memory for a tensor runs out, the error has the tensor's name and size."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import torch

import tensorizer_ops
from support.process import fork_python
from support.raw_format import INDEX_START, Block, pack, pack_header
from tensorizer_ops.errors import Error, OutOfMemory

GIB = 1 << 30

WITH_LITTLE = """
import resource, sys, torch, tensorizer_ops
from tensorizer_ops.errors import Error, OutOfMemory

ops = torch.ops.tensorizer
Reader = torch.classes.tensorizer.Reader
path, meta = sys.argv[1:]

scripted = torch.jit.CompilationUnit(
    "def load(path: str):\\n    return torch.ops.tensorizer.load(path, copy=True)\\n"
).load


def names_the_tensor(name, work, size):
    try:
        work()
    except OutOfMemory as error:
        assert isinstance(error, Error) and isinstance(error, MemoryError)
        assert isinstance(error, torch.OutOfMemoryError)
        text = str(error)
        assert "tensor 'big' (index entry 1)" in text and f"{size} bytes of memory" in text, text
    else:
        raise AssertionError(name)


ops.load(path, names=["small"], copy=True)
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * 4096 + (700 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
GIB = 1 << 30
names_the_tensor("copy", lambda: ops.load(path, copy=True), GIB)
names_the_tensor("mode", lambda: tensorizer_ops.load(path, verify="all", copy=True), GIB)
names_the_tensor("cast", lambda: ops.load(path, dtype=torch.float64, copy=True), 4 * GIB)
reader = Reader(path, None)
names_the_tensor("reader", lambda: reader.load(["big"], None, None, "none", True, 1), GIB)
names_the_tensor("meta", lambda: ops.load(meta), GIB)
Deserializer = tensorizer_ops.TensorDeserializer
names_the_tensor("deserializer", lambda: Deserializer(path, device="cpu"), GIB)
lazy = Deserializer(path, device="cpu", lazy_load=True)
names_the_tensor("lazy", lambda: lazy["big"], GIB)
try:
    scripted(path)
except RuntimeError as error:
    assert "tensorizer.OutOfMemory: " in str(error) and "tensor 'big'" in str(error), error
else:
    raise AssertionError("scripted")
# A tensor that fits still loads.
assert ops.load(path, names=["small"], copy=True)["small"].tolist() == [1, 2, 3]
"""


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    """A sparse file with 1 GiB of zeros, in a process that may allocate only 700 MiB more."""
    small = Block("small", "|u1", (3,), b"\x01\x02\x03")
    length = {"data_length": GIB}
    big = Block("big", "<f2", (GIB // 2,), b"", index=length, header=length)
    path, meta = tmp_path / "big.tensors", tmp_path / "meta.tensors"
    path.write_bytes(pack([small, big], index_size=4096 - INDEX_START, terminator=b""))
    os.truncate(path, path.stat().st_size + GIB + 8)
    assert len(pack_header(big)) < 4096
    meta.write_bytes(pack([small, Block("big", "|u1", (GIB,))], version=4))
    fork_python(WITH_LITTLE, str(path), str(meta))


def test_the_class_is_also_those_of_python_and_torch() -> None:
    assert issubclass(OutOfMemory, (Error, MemoryError))
    assert issubclass(OutOfMemory, torch.OutOfMemoryError)
    error = tensorizer_ops.errors._make("OutOfMemory", b"x", 0, b"")
    assert type(error) is OutOfMemory
    assert str(pickle.loads(pickle.dumps(error))) == "x"
