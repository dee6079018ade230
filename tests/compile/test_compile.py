"""Compiled ops: no call is dropped or moved, and files must keep their traced shapes and types."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

import tensorizer_ops
from tensorizer_ops._base import import_hook
from tensorizer_ops._compile import dynamo, fakes

ops = torch.ops.tensorizer

BACKENDS = ("eager", "aot_eager", "inductor")


class Steps(torch.nn.Module):
    """Saves and loads one file repeatedly. Each load must see the save before it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensorizer_ops.save(self.path, {"x": x})
        first = ops.load_tensors(self.path, ["x"])[0]
        x.add_(1)
        ops.save_tensors(self.path, ["x"], [x])
        second = torch.zeros(3)
        ops.load_into(self.path, ["x"], [second])
        x.add_(1)
        options = {"memory_ceiling": 1 << 20}
        tensorizer_ops.save(self.path, {"x": x}, options=options | {"fsync": False})
        third = tensorizer_ops.load(self.path, names=["x"], options=options)["x"] + 0
        x.add_(1)
        ops.save_tensors(self.path, ["x"], [x])
        fourth = tensorizer_ops.load(self.path)["x"] + 0
        ops.load_into(self.path, ["x"], [third])
        return first, second, third, fourth


def compiled(steps: torch.nn.Module, backend: str) -> Callable[..., object]:
    return torch.compile(steps, fullgraph=True, backend=backend)


def exported(steps: torch.nn.Module, strict: bool, decomposed: bool) -> Callable[..., object]:
    program = torch.export.export(steps, (torch.zeros(3),), strict=strict)
    return (program.run_decompositions() if decomposed else program).module()


WAYS: dict[str, Callable[[torch.nn.Module], Callable[..., object]]] = {
    **{name: lambda steps, name=name: compiled(steps, name) for name in BACKENDS},
    "export": lambda steps: exported(steps, False, False),
    "strict export": lambda steps: exported(steps, True, False),
    "decomposed export": lambda steps: exported(steps, False, True),
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_dropped_or_moved(path: str, way: str) -> None:
    ops.save(path, {"x": torch.full((3,), 9.0)})
    function = WAYS[way](Steps(path))
    ops.save(path, {"x": torch.full((3,), 9.0)})
    for start in (0.0, 5.0):
        values = [tensor.tolist() for tensor in function(torch.full((3,), start))]
        assert values == [[start] * 3, [start + 1] * 3, [start + 3] * 3, [start + 3] * 3]
        assert ops.load(path)["x"].tolist() == [start + 3] * 3


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_dicts_and_names_need_no_graph_break(path: str, backend: str, dynamic: bool) -> None:
    state = {"weight": torch.randn(4, 3), "bias": torch.randn(4), "count": torch.tensor(7)}
    ops.save(path, state)

    def work(x: torch.Tensor) -> torch.Tensor:
        loaded = ops.load(path, dtype=torch.float64)
        some = ops.load.default(path, names=["bias"])
        ops.save(path + ".out", {"x": x, **some})
        total = torch.zeros((), dtype=torch.float64)
        for name in ops.names(path):
            total = total + loaded[name].sum()
        return torch.nn.functional.linear(x.double(), loaded["weight"], loaded["bias"]) + total

    function = torch.compile(work, fullgraph=True, backend=backend, dynamic=dynamic)
    for rows in (2, 5):
        x = torch.randn(rows, 3)
        assert torch.allclose(function(x), work(x))
        assert torch.equal(ops.load(path + ".out")["x"], x)


def written(path: str, save: Callable[[], None]) -> torch.Tensor:
    save()
    return ops.load(path)["x"] * 2


def filled(path: str, out: torch.Tensor) -> torch.Tensor:
    ops.load_into(path, ["x"], [out])
    return out


CALLS: dict[str, Callable[[str, torch.Tensor], torch.Tensor]] = {
    "load": lambda path, x: x + ops.load(path)["x"],
    "load of names": lambda path, x: x + ops.load.default(path, names=["x"])["x"],
    "load_tensors": lambda path, x: x + ops.load_tensors(path, ["x"])[0],
    "load_slices": lambda path, x: x + ops.load_slices(path, ["x"], [0], [0], [1], [1])[0],
    "slices": lambda path, x: x + tensorizer_ops.load(path, slices={"x": -1})["x"],
    "load_into": lambda path, x: x + filled(path, torch.zeros(3)),
    "save": lambda path, x: written(path, lambda: ops.save(path, {"x": x})),
    "save_tensors": lambda path, x: written(path, lambda: ops.save_tensors(path, ["x"], [x])),
    "verify": lambda path, x: written(path, lambda: ops.verify(path)),
    "names": lambda path, x: x * len(ops.names(path)),
}


class Calls(torch.nn.Module):
    def __init__(self, call: str, path: str) -> None:
        super().__init__()
        self.call, self.path = CALLS[call], path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self.path, x)


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("call", CALLS)
def test_an_exported_program_is_saved_with_any_op_in_it(path: str, call: str, strict: bool) -> None:
    ops.save(path, {"x": torch.zeros(3)})
    program = torch.export.export(Calls(call, path), (torch.ones(3),), strict=strict)
    # The graph must not contain dicts, or ops that would have to be decomposed.
    targets = {node.target for node in program.graph.nodes}
    assert not targets & {ops.load.default, ops.save.default, ops.load_into.default}
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    model = torch.export.load(file).module()
    x = torch.full((3,), 5.0)
    for value in (1.0, 2.0):
        ops.save(path, {"x": torch.full((3,), value)})
        found = model(x)
        ops.save(path, {"x": torch.full((3,), value)})
        assert torch.equal(found, CALLS[call](path, x))


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_make_fx_sees_what_a_graph_can_hold(path: str, mode: str, pre_dispatch: bool) -> None:
    ops.save(path, {"x": torch.zeros(3)})
    for call, expected in (("load", ops.load_tensors), ("save", ops.save_tensors)):
        trace = make_fx(Calls(call, path), tracing_mode=mode, pre_dispatch=pre_dispatch)
        targets = [node.target for node in trace(torch.ones(3)).graph.nodes]
        assert expected.default in targets
        assert not {ops.load.default, ops.save.default} & set(targets)
    for call, op in (("load_tensors", ops.load_tensors), ("load_slices", ops.load_slices)):
        trace = make_fx(Calls(call, path), tracing_mode=mode, pre_dispatch=pre_dispatch)
        (node,) = (n for n in trace(torch.ones(3)).graph.nodes if n.target == op.default)
        assert node.kwargs["traced"] == ["float32[3]"]


LOADS: dict[str, Callable[[str], torch.Tensor]] = {
    "load_tensors": lambda path: ops.load_tensors(path, ["x"])[0],
    "load": lambda path: ops.load(path)["x"],
    "load_slices": lambda path: ops.load_slices(path, ["x"], [0], [0], [0], [3])[0],
    "tensorizer_ops.load": lambda path: tensorizer_ops.load(path)["x"],
    "slices": lambda path: tensorizer_ops.load(path, slices={"x": slice(-3, None)})["x"],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("load", LOADS)
def test_a_file_that_changed_since_tracing_is_an_error(path: str, backend: str, load: str) -> None:
    ops.save(path, {"x": torch.zeros(3)})
    function = torch.compile(lambda: LOADS[load](path) + 1, fullgraph=True, backend=backend)
    assert function().tolist() == [1, 1, 1]
    ops.save(path, {"x": torch.ones(3)})
    assert function().tolist() == [2, 2, 2]
    ops.save(path, {"x": torch.ones(4)})
    with pytest.raises(ValueError, match=r"'x'.* is float32\[4\], and was float32\[3\]"):
        function()
    ops.save(path, {"x": torch.ones(3, dtype=torch.int32)})
    with pytest.raises(ValueError, match=r"'x'.* is int32\[3\], and was float32\[3\]"):
        function()
    ops.save(path, {"x": torch.ones(3), "y": torch.ones(3)})
    if load in ("load_tensors", "load_slices"):
        assert function().tolist() == [2, 2, 2]
    else:
        with pytest.raises(ValueError, match="has 2 tensors, and had 1 when this program, which"):
            function()
    ops.save(path, {"y": torch.ones(3)})
    with pytest.raises(KeyError, match="'x'"):
        function()


@pytest.mark.parametrize("decomposed", [False, True], ids=["", "decomposed"])
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize(
    "call", ["load", "load of names", "load_tensors", "load_slices", "load_into"]
)
def test_an_exported_program_says_which_tensor_changed(
    path: str, call: str, strict: bool, decomposed: bool
) -> None:
    ops.save(path, {"x": torch.zeros(3)})
    program = torch.export.export(Calls(call, path), (torch.ones(3),), strict=strict)
    model = (program.run_decompositions() if decomposed else program).module()
    ops.save(path, {"x": torch.ones(1)})
    with pytest.raises(ValueError, match=r"'x'.* is float32\[1\], and was float32\[3\]"):
        model(torch.ones(3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_slices_of_every_kind_compile(path: str, backend: str) -> None:
    x, y = torch.rand(4, 6, 5), torch.rand(3)
    ops.save(path, {"x": x, "y": y})

    def work(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        index = (1, ..., slice(None, -1, 2))
        loaded = tensorizer_ops.load(path, slices={"x": index}, dtype=torch.float64)
        stepped = ops.load_slices(path, ["x"], [0], [0], [1], [2], [2])[0]
        return loaded["x"] + z, loaded["y"] + z, stepped

    results = torch.compile(work, fullgraph=True, backend=backend)(torch.ones(()))
    for result, expected in zip(
        results, (x[1, ..., :-1:2].double() + 1, y.double() + 1, x[1::2]), strict=True
    ):
        assert torch.equal(result, expected)


def test_a_slice_that_does_not_fit_is_an_error_while_tracing(path: str) -> None:
    ops.save(path, {"x": torch.rand(4)})
    for load in (
        lambda: tensorizer_ops.load(path, slices={"x": 4})["x"],
        lambda: ops.load_slices(path, ["x"], [0], [0], [4], [1])[0],
    ):
        with pytest.raises(Exception, match=r"'x'.* has the shape \[4\]"):
            torch.compile(load, fullgraph=True, backend="eager")()


SECRET = {"s3_secret_access_key": "sesame"}
WITH_A_SECRET: dict[str, Callable[[str, torch.Tensor], object]] = {
    "load": lambda path, x: ops.load(path, options=SECRET),
    "load_tensors": lambda path, x: ops.load_tensors(path, ["x"], options=SECRET),
    "load_slices": lambda path, x: ops.load_slices(path, [], [], [], [], [], options=SECRET),
    "load_into": lambda path, x: ops.load_into(path, ["x"], [x], options=SECRET),
    "save": lambda path, x: ops.save(path, {"x": x}, options=SECRET),
    "save_tensors": lambda path, x: ops.save_tensors(path, ["x"], [x], options=SECRET),
    "verify": lambda path, x: ops.verify(path, options=SECRET),
    "tensorizer_ops.save": lambda path, x: tensorizer_ops.save(path, {"x": x}, options=SECRET),
}
TRACERS: dict[str, Callable[[Callable[..., object]], object]] = {
    "compile": lambda f: torch.compile(f, fullgraph=True, backend="eager")(torch.ones(3)),
    "export": lambda f: torch.export.export(Function(f), (torch.ones(3),)),
    "jit.trace": lambda f: torch.jit.trace(f, torch.ones(3)),
}


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x)


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("call", WITH_A_SECRET)
def test_a_traced_program_keeps_no_secret(path: str, call: str, tracer: str) -> None:
    ops.save(path, {"x": torch.zeros(3)})

    def work(x: torch.Tensor) -> torch.Tensor:
        WITH_A_SECRET[call](path, x)
        return x + 1

    with pytest.raises(Exception, match="a traced program would keep: name it") as error:
        TRACERS[tracer](work)
    assert "sesame" not in str(error.value)


def test_a_file_must_be_there_while_tracing(path: str) -> None:
    function = torch.compile(lambda: ops.load(path, names=["x"])["x"], fullgraph=True)
    with pytest.raises(Exception, match="tracing a program needs the file"):
        function()


def test_tracing_takes_nothing_from_a_pipe(tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    keep_open = os.open(fifo, os.O_RDWR)
    try:
        for load in (
            lambda: ops.load_tensors(fifo, ["x"]),
            lambda: ops.load(fifo, names=["x"]),
            lambda: ops.load_slices(fifo, ["x"], [0], [0], [0], [1]),
            lambda: tensorizer_ops.load(fifo, names=["x"], slices={"x": 0}),
        ):
            with pytest.raises(Exception, match="can be read only once, and tracing would"):
                torch.compile(load, fullgraph=True, backend="eager")()
    finally:
        os.close(keep_open)


@pytest.mark.parametrize(
    "save",
    [
        lambda path, x: tensorizer_ops.save(path, {"x": x}),
        lambda path, x: torch.ops.tensorizer.save(path, {"x": x}),
        lambda path, x: torch.ops.tensorizer.save_tensors(path, ["x"], [x]),
        lambda path, x: torch.ops.tensorizer.save_tensors(path, names=["x"], tensors=[x]),
    ],
)
def test_a_subclass_is_not_saved_as_one_of_its_tensors(
    path: str, save: Callable[[str, torch.Tensor], None]
) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        save(path, y)
        return y

    two = TwoTensor(torch.ones(3), torch.zeros(3))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="'x' cannot be saved"):
        torch.compile(program, backend="aot_eager")(two)
    assert not Path(path).exists()


def test_importing_the_package_does_not_import_the_compiler() -> None:
    code = "import sys, tensorizer_ops; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_compiler_is_told_when_it_is_imported_and_not_when_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compiler.py").write_text("imported = True")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[str] = []
    finders = list(sys.meta_path)
    import_hook.when_imported("compiler", lambda: told.append("now"))
    for _ in range(2):
        assert importlib.util.find_spec("compiler") is not None
    assert not told
    try:
        assert importlib.import_module("compiler").imported
    finally:
        sys.modules.pop("compiler", None)
    assert told == ["now"]
    assert sys.meta_path == finders


def test_torch_still_has_the_private_parts_that_are_used() -> None:
    assert fakes._register_effect is not None
    dynamo._register()  # raises, unlike _register_where_possible()
