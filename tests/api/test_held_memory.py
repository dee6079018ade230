"""Memory that is resized or replaced while a job reads or fills it."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.process import fork_python
from support.raw_format import INDEX_START, Block, pack, pack_header
from support.samples import random_bytes, same

ops = torch.ops.tensorizer

# Much more than the buffer of a pipe.
SIZE = 8 << 20


def may_resize(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    try:
        storage.resize_(size + 1)
    except RuntimeError as error:
        assert "not resizable" in str(error)
        return False
    storage.resize_(size)
    return True


def half_way(work: Callable[[str], None], fifo: str, while_it_runs: Callable[[], None]) -> bytes:
    """Returns what `work` writes to a pipe. The pipe is drained only after `while_it_runs`."""
    os.mkfifo(fifo)
    thread = threading.Thread(target=work, args=(fifo,))
    thread.start()
    with open(fifo, "rb") as stream:
        first = stream.read(1)
        while_it_runs()
        rest = stream.read()
    thread.join()
    os.unlink(fifo)
    return first + rest


def test_a_save_holds_what_it_reads(path: str, tmp_path: Path) -> None:
    tensors = {
        "x": random_bytes(SIZE),
        "strided": random_bytes(SIZE, 1).view(2, -1).t(),
        "replaced": random_bytes(SIZE, 2),
    }
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    mapped = torch.from_file(str(tmp_path / "mapped"), shared=True, size=SIZE, dtype=torch.uint8)

    def interfere() -> None:
        assert not may_resize(tensors["x"]) and not may_resize(tensors["strided"])
        tensors["replaced"].data = torch.zeros(3)

    def save(place: str) -> None:
        ops.save(place, tensors | {"mapped": mapped})

    Path(path).write_bytes(half_way(save, str(tmp_path / "fifo"), interfere))
    loaded = ops.load(path)
    assert all(same(loaded[name], tensor) for name, tensor in before.items())
    assert may_resize(tensors["x"]) and may_resize(tensors["strided"])
    assert not may_resize(mapped)


def test_two_saves_of_one_tensor(tmp_path: Path) -> None:
    x = random_bytes(SIZE)

    def save(place: str) -> None:
        ops.save(place, {"x": x, "twice": x[1:]})

    def save_again() -> None:
        half_way(save, str(tmp_path / "second"), lambda: None)
        assert not may_resize(x)

    half_way(save, str(tmp_path / "first"), save_again)
    assert may_resize(x)
    with pytest.raises(ValueError):
        ops.save(str(tmp_path / "x"), {"x": x, "nested": torch.nested.nested_tensor([x, x])})
    assert may_resize(x)


def test_a_writer_holds_what_it_adds(path: str) -> None:
    x = random_bytes(SIZE)
    writer = torch.classes.tensorizer.Writer(path, None)
    writer.add("x", x)
    assert may_resize(x)
    x.untyped_storage().resize_(0)
    writer.close()
    assert ops.names(path) == ["x"]


def test_a_load_holds_what_it_fills(path: str, tmp_path: Path) -> None:
    tensors = {"x": random_bytes(SIZE), "replaced": random_bytes(SIZE, 1)}
    ops.save(path, tensors)
    content = Path(path).read_bytes()
    outputs = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    memory = outputs["replaced"].view(-1)  # a view of the same memory
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)

    def load() -> None:
        ops.load_into(fifo, list(outputs), list(outputs.values()))

    thread = threading.Thread(target=load)
    thread.start()
    with open(fifo, "wb", buffering=0) as stream:
        # More than the buffer of a pipe, so the load has begun to read.
        view = memoryview(content)[stream.write(content[: SIZE // 2]) :]
        assert not may_resize(outputs["x"])
        outputs["replaced"].data = torch.zeros(3)
        # The load does not read the bytes after the last tensor.
        with contextlib.suppress(BrokenPipeError):
            while view:
                view = view[stream.write(view) :]
    thread.join()
    assert may_resize(outputs["x"])
    assert same(outputs["x"], tensors["x"])
    assert same(memory, tensors["replaced"])


# A thread resizes the storage of what a function is given for as long as that is called: it must
# find it both resizable and held, several times.
RESIZED = """
import sys, threading, torch, tensorizer_ops
from tensorizer_ops import checkpoint, safetensors
from support.folders import save_folder_async
what, folder = sys.argv[1:]
path = folder + "/new.tensors"
ops = torch.ops.tensorizer
x = torch.ones(2 << 20)
if what not in ("save", "the op save", "the op load_into"):
    x = x.view(2, -1).t()
model = torch.nn.Module()
model.register_buffer("x", x)
state = {"x": x}
tensorizer_ops.save(folder + "/there.tensors", state, hashes="all+chunked")
tensorizer_ops.save(folder + "/there.safetensors", state)
dcp = folder + "/dcp"
calls = {
    "save": lambda: tensorizer_ops.save(path, state),
    "save_async": lambda: tensorizer_ops.save_async(path, state).result(),
    "checkpoint.save_async": lambda: checkpoint.save_async(path, state).result(),
    "async_save": lambda: save_folder_async(dcp, state).result(),
    "save_model": lambda: safetensors.save_model(model, folder + "/new.safetensors"),
    "load_model": lambda: safetensors.load_model(model, folder + "/there.safetensors"),
    "load_into": lambda: tensorizer_ops.load_into(state, folder + "/there.tensors", verify="all"),
    "the op load_into": lambda: ops.load_into(folder + "/there.tensors", ["x"], [x], verify="all"),
    "the op save": lambda: ops.save(path, state),
    "crc32": lambda: ops.crc32(x),
    "sha256": lambda: ops.sha256(x),
    "sha256_chunks": lambda: ops.sha256_chunks(x, 1 << 20),
    "verify_tensors": lambda: tensorizer_ops.verify_tensors(folder + "/there.tensors", state),
    "attest": lambda: tensorizer_ops.attest(state, folder + "/there.tensors"),
}
done, resized, refused = threading.Event(), 0, 0
def resize():
    global resized, refused
    storage = x.untyped_storage()
    sizes = [0, storage.nbytes()]
    while not done.is_set():
        for size in sizes:
            try:
                storage.resize_(size)
                resized += 1
            except RuntimeError as error:
                assert "not resizable" in str(error)
                refused += 1
sys.setswitchinterval(1e-4)
thread = threading.Thread(target=resize)
thread.start()
texts = set()
count = 0
while count < 100 or (min(resized, refused) < 30 and count < 30000):
    count += 1
    try:
        calls[what]()
    except Exception as error:
        for each in getattr(error, "failures", {}).values():  # of torch's CheckpointException
            error = each[0]
        texts.add(" ".join(f"{type(error).__name__}: {error}".split()))
done.set()
thread.join()
print(resized >= 30, refused >= 30)
print("\\n".join(sorted(texts)))
"""


@pytest.mark.parametrize(
    "what",
    [
        *("save", "save_async", "checkpoint.save_async", "async_save", "save_model", "load_model"),
        *("load_into", "the op load_into", "the op save"),
        *("crc32", "sha256", "sha256_chunks", "verify_tensors", "attest"),
    ],
)
def test_a_storage_that_another_thread_resizes(what: str, tmp_path: Path) -> None:
    first, *texts = fork_python(RESIZED, what, tmp_path).stdout.splitlines()
    assert first == "True True"
    for text in texts:
        if text.startswith("HashMismatch: "):  # the values are gone with the memory
            assert what == "verify_tensors"
        elif text:
            assert "its storage has 0 of the" in text
            assert "'x'" in text or "data has no bytes to use" in text


# A thread gives a tensor other memory, or other strides, for as long as a function is called.
CHANGED = """
import sys, threading, torch, tensorizer_ops
call, change, path = sys.argv[1:]
ops = torch.ops.tensorizer
x = torch.nn.Parameter(torch.zeros(1 << 14), requires_grad=False)
others = [torch.zeros(1 << 14), torch.ones(3, 5, dtype=torch.float64)]
ops.save(path, {"x": x})
calls = {
    "save": lambda: ops.save(path, {"x": x}),
    "load_into": lambda: ops.load_into(path, ["x"], [x]),
}
changes = {
    "data": [lambda: setattr(x, "data", others[0]), lambda: setattr(x, "data", others[1])],
    "as_strided_": [lambda: x.as_strided_((2, 1 << 13), (1 << 13, 1)),
                    lambda: x.as_strided_((1 << 13, 2), (1, 1 << 13))],
}
done, changed = threading.Event(), 0
def run():
    global changed
    while not done.is_set():
        for each in changes[change]:
            each()
            changed += 1
thread = threading.Thread(target=run)
thread.start()
texts = set()
sys.setswitchinterval(1e-4)
for _ in range(200):
    try:
        calls[call]()
        if call == "save" and change == "data":
            found = tensorizer_ops.load(path, verify="all")["x"]
            assert any(found.dtype == each.dtype and torch.equal(found, each) for each in others)
    except Exception as error:
        texts.add(" ".join(f"{type(error).__name__}: {error}".split()))
done.set()
thread.join()
assert changed > 200
print("\\n".join(sorted(texts)))
"""


@pytest.mark.parametrize("call", ["save", "load_into"])
@pytest.mark.parametrize("change", ["data", "as_strided_"])
def test_a_tensor_that_another_thread_changes(call: str, change: str, path: str) -> None:
    for text in filter(None, fork_python(CHANGED, call, change, path).stdout.splitlines()):
        assert text.startswith("InvalidArgument: ") and "'x'" in text


# Python runs signal handlers on the main thread, here while the job works.
CUT = """
import os, signal, sys, torch
import tensorizer_ops
path, what = sys.argv[1:]
tasks = lambda: len(os.listdir("/proc/self/task"))
before = tasks()
def cut(*_):
    if tasks() > before:
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.truncate(path, 8192)
signal.signal(signal.SIGALRM, cut)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
try:
    if what == "digest":
        tensorizer_ops.digest(path, threads=2)
    else:
        torch.ops.tensorizer.verify(path, verify=what, threads=2)
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize("what", ["digest", "all", "crc32"])
def test_a_file_that_is_cut_while_it_is_read(path: str, what: str) -> None:
    # A sparse file of zeros. Its hashes are wrong, but it is cut before they are compared.
    size = 1 << 34
    length = {"data_length": size}
    block = Block("x", "<f8", (size // 8,), b"", index=length, header=length)
    block.padding = -len(pack_header(block)) % 4096
    Path(path).write_bytes(pack([block], index_size=4096 - INDEX_START, terminator=b""))
    os.truncate(path, os.path.getsize(path) + size + 8)
    text = fork_python(CUT, path, what).stdout
    assert text.startswith(f"'{path}' ends at byte ")
    assert "it was truncated since" in text


# Ways to change the memory of a tensor that a Reader uses as its file. Torch refuses to resize it.
CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "resize_": lambda tensor: tensor.resize_(2 * SIZE),
    "set_": lambda tensor: tensor.set_(torch.zeros(3, dtype=torch.uint8)),
    "data": lambda tensor: setattr(tensor, "data", torch.zeros(3, dtype=torch.uint8)),
    "resize_ of the storage": lambda tensor: tensor.untyped_storage().resize_(0),
}


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_reader_holds_the_memory_of_its_file(path: str, change: str, opened: bool) -> None:
    x = random_bytes(SIZE)
    ops.save(path, {"x": x})
    data = torch.tensor(bytearray(Path(path).read_bytes()), dtype=torch.uint8)
    reader = ops.open(data)
    if opened:
        assert reader.names() == ["x"]
    if "resize" in change:
        with pytest.raises(RuntimeError, match="not resizable"):
            CHANGES[change](data)
        reader.load(None, None, None, "all", True, 0)
        reader.close()
        assert may_resize(data)
        return
    CHANGES[change](data)
    assert same(reader.load(None, None, None, "all", True, 0)["x"], x)
    assert same(pickle.loads(pickle.dumps(reader)).load(None)["x"], x)


@pytest.mark.parametrize("opened", [False, True])
def test_a_file_in_memory_that_has_moved(path: str, opened: bool) -> None:
    ops.save(path, {"x": random_bytes(SIZE)})
    data = torch.tensor(bytearray(Path(path).read_bytes()), dtype=torch.uint8)
    reader = ops.open(data)
    if opened:
        assert reader.names() == ["x"]
    data.share_memory_()
    with pytest.raises(ValueError, match="has other memory than when it was opened"):
        reader.load(None, None, None, "none", True, 0)
