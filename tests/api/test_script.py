"""TorchScript: every op and both classes, also after saving, loading and freezing the code."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Dict, List, Optional, Tuple  # noqa: UP035  (TorchScript reads these)

import pytest
import torch

import tensorizer_ops
from support.process import run_python
from support.raw_parse import parse
from support.samples import assert_same, same, sample, zoo

ops = torch.ops.tensorizer


def through_a_file(script: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    buffer = io.BytesIO()
    torch.jit.save(script, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


@torch.jit.script
def use_every_op(path: str, tensors: Dict[str, torch.Tensor]) -> List[torch.Tensor]:  # noqa: UP006
    torch.ops.tensorizer.save(path, tensors, hashes="sha256", threads=1)
    names = torch.ops.tensorizer.names(path)
    torch.ops.tensorizer.verify(path)
    loaded = torch.ops.tensorizer.load(path, names=names, verify="all")
    out = [torch.zeros_like(loaded[name]) for name in names]
    torch.ops.tensorizer.load_into(path, names, out)
    torch.ops.tensorizer.save_tensors(path, names, out, hashes="crc32")
    parts = torch.ops.tensorizer.load_slices(path, names, [0, 1], [1, 0], [2, 3], [4, 2], [1, 3])
    reader = torch.classes.tensorizer.Reader(path, None)
    again = reader.load_slices(names, [0, 1], [1, 0], [2, 3], [4, 2], [1, 3])
    assert torch.equal(parts[0], loaded["a"][:, 2:6]) and torch.equal(parts[1], loaded["b"][3:7:3])
    assert torch.equal(parts[2], loaded["c"])
    for i in range(len(names)):
        assert torch.equal(parts[i], again[i])
    return torch.ops.tensorizer.load_tensors(path, names, copy=True, verify="crc32")


@torch.jit.script
def one_tensor(path: str) -> torch.Tensor:
    return torch.ops.tensorizer.load(path)["x"]


def test_a_trace_calls_what_is_scripted(path: str) -> None:
    ops.save(path, {"x": torch.zeros(2)})
    traced = through_a_file(torch.jit.trace(lambda y: y + one_tensor(path), torch.ones(2)))
    ops.save(path, {"x": torch.ones(2)})
    assert traced(torch.ones(2)).tolist() == [2, 2]


def test_a_trace_records_every_op(path: str) -> None:
    def work(x: torch.Tensor) -> Tuple[torch.Tensor, ...]:  # noqa: UP006
        ops.save(path, {"x": x, "y": x + 1}, hashes="crc32", options={"fsync": "false"})
        ops.save_tensors(path + ".list", ["x"], [x * 2])
        ops.verify(path)
        cpu = torch.device("cpu")
        loaded = ops.load(path, names=["y"], dtype=torch.float64, device=cpu, copy=True)["y"]
        listed = ops.load_tensors(path + ".list", ops.names(path + ".list"), verify="all")[0]
        out = torch.zeros(2)
        ops.load_into(path, ["x"], [out])
        tensorizer_ops.save(path, {"x": x * 3})
        front = tensorizer_ops.load(path, options={"memory_ceiling": 1 << 20})["x"]
        part = ops.load_slices(path, ["x"], [0], [0], [1], [1])[0]
        return loaded, listed, out, front, part, x + len(ops.digest(path))

    traced = through_a_file(torch.jit.trace(work, torch.zeros(2)))
    x = torch.full((2,), 7.0)
    for result, expected in zip(traced(x), work(x), strict=True):
        assert same(result, expected)
    assert "ops.tensorizer.verify(" in traced.code


def test_a_failed_call_ends_a_trace_as_any_error_does(path: str) -> None:
    with pytest.raises(FileNotFoundError):
        torch.jit.trace(lambda y: y + ops.load(path)["x"], torch.ones(2))
    assert torch.jit.trace(lambda y: y + 1, torch.ones(2))(torch.ones(2)).tolist() == [2, 2]


class Traced(torch.nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.reader = torch.classes.tensorizer.Reader(path, None)
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ops.save(self.path + ".weight", {"weight": self.weight})
        return x + self.reader.load(["x"], None, None, "none", False, 0)["x"]


def test_a_trace_of_a_module_knows_its_attributes(path: str) -> None:
    ops.save(path, {"x": torch.zeros(2)})
    traced = through_a_file(torch.jit.trace(Traced(path), torch.ones(2)))
    ops.save(path, {"x": torch.full((2,), 5.0)})
    with torch.no_grad():
        traced.weight.fill_(3)
    assert traced(torch.ones(2)).tolist() == [6, 6]
    assert ops.load(path + ".weight")["weight"].tolist() == [3, 3]


def test_every_op(path: str) -> None:
    tensors = {"a": sample(torch.float32), "b": torch.arange(7), "c": torch.tensor(True)}
    results = use_every_op(path, tensors)
    assert_same(dict(zip(tensors, results, strict=True)), tensors)
    assert set(parse(Path(path).read_bytes())["a"].hashes) == {0}


@torch.jit.script
def cast(path: str, options: Optional[Dict[str, str]]) -> torch.Tensor:  # noqa: UP006, UP045
    loaded = torch.ops.tensorizer.load(
        path, dtype=torch.float64, device=torch.device("cpu"), options=options
    )
    return loaded["x"]


def test_optional_arguments(path: str) -> None:
    ops.save(path, {"x": torch.ones(3)})
    assert same(cast(path, None), torch.ones(3, dtype=torch.float64))
    assert same(cast(path, {}), torch.ones(3, dtype=torch.float64))


class SaveOnly(torch.nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.ops.tensorizer.save(self.path, {"x": x})
        torch.ops.tensorizer.save_tensors(self.path + ".list", ["x"], [x])
        return x + 1


class LoadConstant(torch.nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, int]:  # noqa: UP006
        torch.ops.tensorizer.verify(self.path)
        loaded = torch.ops.tensorizer.load(self.path)["x"]
        listed = torch.ops.tensorizer.load_tensors(self.path, ["x"])[0]
        listed[1:3] = torch.ops.tensorizer.load_slices(self.path, ["x"], [0], [0], [1], [2])[0]
        return x + loaded, x + listed, len(torch.ops.tensorizer.names(self.path))


STAGES = {
    "scripted": lambda script: script,
    "saved": through_a_file,
    "frozen": lambda script: torch.jit.freeze(script),
    "frozen and saved": lambda script: through_a_file(torch.jit.freeze(script)),
    "optimized": lambda script: torch.jit.optimize_for_inference(script),
}


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_saves_are_not_dead_code(path: str, stage: object) -> None:
    script = stage(torch.jit.script(SaveOnly(path).eval()))
    for step in range(3):
        script(torch.full((4,), step))
        assert same(ops.load(path, copy=True)["x"], torch.full((4,), step))
        assert same(ops.load(path + ".list", copy=True)["x"], torch.full((4,), step))
        Path(path).unlink()
        Path(path + ".list").unlink()


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_loads_are_not_baked_in(path: str, stage: object) -> None:
    ops.save(path, {"x": torch.full((4,), 1000)})
    script = stage(torch.jit.script(LoadConstant(path).eval()))
    for step in range(3):
        ops.save(path, {str(i): torch.ones(1) for i in range(step)} | {"x": torch.full((4,), step)})
        loaded, listed, count = script(torch.zeros(4, dtype=torch.int64))
        assert same(loaded, torch.full((4,), step))
        assert same(listed, torch.full((4,), step))
        assert count == step + 1
    Path(path).unlink()
    with pytest.raises(RuntimeError, match=r"tensorizer\.NotFound: "):
        script(torch.zeros(4))


@torch.jit.script
def save_load_save_load(path: str) -> List[torch.Tensor]:  # noqa: UP006
    torch.ops.tensorizer.save(path, {"x": torch.zeros(3)})
    first = torch.ops.tensorizer.load(path)["x"]
    torch.ops.tensorizer.save(path, {"x": torch.ones(3)})
    second = torch.ops.tensorizer.load(path)["x"]
    # TorchScript does not detect writes to tensors in a list.
    out = torch.zeros(3)
    torch.ops.tensorizer.load_into(path, ["x"], [out])
    method_out = torch.zeros(3)
    torch.classes.tensorizer.Reader(path, None).load_into(["x"], [method_out], "none", 0)
    torch.ops.tensorizer.save(path, {"x": torch.full([3], 2.0)})
    third = torch.ops.tensorizer.load_tensors(path, ["x"])[0]
    return [first, second, out, method_out, third]


def test_order_is_kept(path: str) -> None:
    for _ in range(3):
        values = [tensor.tolist() for tensor in save_load_save_load(path)]
        assert values == [[0.0] * 3, [1.0] * 3, [1.0] * 3, [1.0] * 3, [2.0] * 3]


class Holder(torch.nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.reader = torch.classes.tensorizer.Reader(path, {})

    def forward(self, name: str) -> torch.Tensor:
        return self.reader.load([name], None, None, "all", False, 0)[name]


@pytest.mark.keeps_files_open  # a frozen module's constants live as long as its executor's cache
@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_a_module_that_holds_a_reader(path: str, stage: object) -> None:
    ops.save(path, zoo())
    script = stage(torch.jit.script(Holder(path).eval()))
    for name in ("float32", "bfloat16", "bits8"):
        assert same(script(name), zoo()[name])
    with pytest.raises(RuntimeError, match=r"tensorizer\.NoSuchTensor: "):
        script("missing")


def test_a_saved_module_opens_its_file_on_first_use(path: str) -> None:
    script = torch.jit.script(Holder(path).eval())
    buffer = io.BytesIO()
    torch.jit.save(script, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    ops.save(path, zoo())
    assert same(loaded("int8"), zoo()["int8"])


class Copier(torch.nn.Module):
    def forward(self, source: str, target: str) -> int:
        reader = torch.classes.tensorizer.Reader(source, None)
        writer = torch.classes.tensorizer.Writer(target, {"hashes": "crc32"})
        for name in reader.names():
            writer.add(name, reader.load([name], None, None, "none", False, 1)[name], 2, 0)
        writer.close()
        reader.close()
        return len(source)


def test_both_classes_in_a_method(path: str) -> None:
    ops.save(path, zoo())
    script = through_a_file(torch.jit.script(Copier()))
    script(path, path + ".copy")
    assert_same(ops.load(path + ".copy", verify="all"), zoo())


def test_errors_keep_their_words(path: str) -> None:
    with pytest.raises(RuntimeError, match=r"tensorizer\.NotFound: "):
        cast(path, None)
    ops.save(path, {"y": torch.ones(3)})
    with pytest.raises(RuntimeError, match=r"tensorizer\.InvalidArgument: "):
        cast(path, {"no such": "1"})
    Path(path).write_bytes(b"nonsense")
    with pytest.raises(RuntimeError, match=r"tensorizer\.InvalidFormat: "):
        cast(path, None)


FORKED = """
import contextlib, os, sys, threading, torch, tensorizer_ops

@torch.jit.script
def load(path: str) -> torch.Tensor:
    return torch.ops.tensorizer.load(path)["x"]

@torch.jit.script
def load_both(first: str, second: str) -> torch.Tensor:
    a = torch.jit.fork(load, first)
    b = torch.jit.fork(load, second)
    return torch.jit.wait(a) - torch.jit.wait(b)

def feed():
    # Feeds the second FIFO first: loads that ran one after the other would wait for ever.
    for number, fifo in ((2, sys.argv[2]), (5, sys.argv[1])):
        # The load may close the FIFO before the last bytes are written.
        with contextlib.suppress(BrokenPipeError):
            torch.ops.tensorizer.save(fifo, {"x": torch.full((1000,), number)})

feeder = threading.Thread(target=feed, daemon=True)
feeder.start()
torch.set_num_interop_threads(2)
assert (load_both(sys.argv[1], sys.argv[2]) == 3).all()
feeder.join()
# A torch thread may still hold Python objects of the fork. Releasing one while the interpreter
# shuts down would kill the process.
os._exit(0)
"""


def test_forked_loads_overlap(tmp_path: Path) -> None:
    fifos = [str(tmp_path / name) for name in ("first", "second")]
    for fifo in fifos:
        os.mkfifo(fifo)
    (tmp_path / "forked.py").write_text(FORKED)  # TorchScript needs a source file
    run_python("import sys; sys.path.append(sys.argv.pop(1)); import forked", str(tmp_path), *fifos)
