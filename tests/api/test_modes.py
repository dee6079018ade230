"""The ops work in every mode of torch, or refuse with a one-sentence error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import tensorizer_ops
from support.samples import same
from support.scripted import replaced_after_opening, scripted
from tensorizer_ops import safetensors

ops = torch.ops.tensorizer


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.arange(6, dtype=torch.float32).reshape(2, 3)


@pytest.fixture
def saved(path: str, weight: torch.Tensor) -> str:
    ops.save(path, {"w": weight})
    return path


def test_autograd(saved: str, weight: torch.Tensor) -> None:
    loaded = tensorizer_ops.load(saved)["w"]
    assert not loaded.requires_grad and loaded.is_leaf
    x = torch.ones(2, 3, requires_grad=True)
    (x * loaded).sum().backward()
    assert same(x.grad, weight)
    ops.save(saved, {"w": (x * 2)})
    assert same(tensorizer_ops.load(saved)["w"], torch.full((2, 3), 2.0))
    with pytest.raises(ValueError, match=r"requires grad: load under torch.no_grad\(\)"):
        ops.load_into(saved, ["w"], [x])
    with torch.no_grad():
        ops.load_into(saved, ["w"], [x])
    assert x.requires_grad and same(x, torch.full((2, 3), 2.0))


def test_autocast(saved: str, weight: torch.Tensor) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(ops.load(saved)["w"], weight)
        ops.save(saved, {"y": weight @ weight.t(), "w": weight})
    loaded = ops.load(saved)
    assert (loaded["y"].dtype, loaded["w"].dtype) == (torch.bfloat16, torch.float32)


def test_inference_mode(saved: str, weight: torch.Tensor) -> None:
    normal = torch.zeros(2, 3)
    with torch.inference_mode():
        for copy in (False, True):
            loaded = ops.load(saved, copy=copy)["w"]
            assert loaded.is_inference() and same(loaded, weight)
        ops.load_into(saved, ["w"], [loaded.zero_()])
        ops.load_into(saved, ["w"], [normal])
        ops.save(saved, {"w": loaded + 1})
    assert same(loaded, weight) and same(normal, weight)
    assert same(ops.load(saved)["w"], weight + 1)
    assert not ops.load(saved)["w"].is_inference()
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        ops.load_into(saved, ["w"], [loaded])
    assert same(loaded, weight)


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_inference_mode_on_many_threads(path: str, device: str) -> None:
    """All workers are in the caller's inference mode, including for staging and cast buffers."""
    if device == "sim":
        from support import sim_device  # noqa: F401  (registers the device)
    tensors = {f"t{i}": torch.randn(256, 512) for i in range(12)}
    ops.save(path, tensors)
    names = list(tensors)
    options = {"staging": str(1 << 20), "memory_ceiling": str(1 << 20)}
    normal = [torch.zeros(256, 1024, device=device)[:, ::2] for _ in names]
    whole = [torch.zeros(256, 512, device=device) for _ in names]
    with torch.inference_mode():
        for dtype in (torch.float64, torch.float32):
            loaded = ops.load(path, dtype=dtype, device=device, threads=4, options=options)
            for name, tensor in loaded.items():
                assert tensor.is_inference() and same(tensor.cpu(), tensors[name].to(dtype))
        inference = [torch.zeros(256, 1024, device=device)[:, ::2] for _ in names]
        for outputs in (normal, whole, inference, list(loaded.values())):
            ops.load_into(path, names, outputs, threads=4, options=options)
            for output, tensor in zip(outputs, tensors.values(), strict=True):
                assert same(output.cpu(), tensor)
        ops.save(path, dict(zip(names, inference, strict=True)), threads=4, options=options)
    assert all(same(tensor, tensors[name]) for name, tensor in ops.load(path).items())


def test_deterministic_mode(saved: str, weight: torch.Tensor) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        for copy in (False, True):
            assert same(ops.load(saved, copy=copy, verify="all")["w"], weight)
        out = torch.empty(3, 2).t()
        ops.load_into(saved, ["w"], [out])
        assert same(out, weight)
    finally:
        torch.use_deterministic_algorithms(False)


def test_vmap(saved: str, weight: torch.Tensor) -> None:
    def apply(x: torch.Tensor) -> torch.Tensor:
        return tensorizer_ops.load(saved)["w"] @ x

    x = torch.rand(5, 3)
    assert torch.allclose(torch.vmap(apply)(x), x @ weight.t())
    with pytest.raises(ValueError, match=r"tensor 'x' cannot be saved: it is inside torch.vmap"):
        torch.vmap(lambda x: tensorizer_ops.save(saved, {"x": x}) or x)(x)
    assert same(ops.load(saved)["w"], weight)
    with pytest.raises(ValueError, match=r"cannot be filled: it is inside torch.vmap"):
        torch.vmap(lambda x: ops.load_into(saved, ["w"], [x]) or x)(torch.zeros(5, 2, 3))


def test_functional_gradients(saved: str, weight: torch.Tensor) -> None:
    def saves_and_loads(x: torch.Tensor) -> torch.Tensor:
        factor = ops.load(saved)["w"]
        tensorizer_ops.save(saved, {"w": x})
        return (x * factor).sum()

    assert same(torch.func.grad(saves_and_loads)(torch.ones(2, 3)), weight)
    assert same(ops.load(saved)["w"], torch.ones(2, 3))


def test_fake_tensors(saved: str, weight: torch.Tensor) -> None:
    """Fake loads have shapes, even on devices that do not exist."""
    with FakeTensorMode():
        for device in ("cpu", "cuda:3", "meta"):
            for loaded in (
                ops.load(saved, device=device, dtype=torch.half)["w"],
                *ops.load_tensors(saved, ["w"], device=device, dtype=torch.half),
            ):
                assert isinstance(loaded, FakeTensor)
                assert (loaded.shape, loaded.dtype) == (weight.shape, torch.half)
                assert loaded.device == torch.device(device)
        out = torch.zeros(2, 3)
        ops.load_into(saved, ["w"], [out])
        assert isinstance(out, FakeTensor)


def test_fake_loads_of_functions(saved: str, weight: torch.Tensor, tmp_path: Path) -> None:
    """All loads obey the mode, as the ops do: of files, parts, open files and file objects."""
    other = str(tmp_path / "w.safetensors")
    tensorizer_ops.save(other, {"w": weight})
    data = Path(other).read_bytes()
    with FakeTensorMode():
        for device in ("cpu", "cuda:3"):
            for loaded in (
                tensorizer_ops.load(saved, device=device, slices={"w": ...}),
                tensorizer_ops.load(bytearray(Path(saved).read_bytes()), device=device),
                tensorizer_ops.Reader(saved).load(device=device),
                dict(tensorizer_ops.iterate(saved, device=device)),
                safetensors.load_file(other, device),
                safetensors.load(data) if device == "cpu" else {},
            ):
                for tensor in loaded.values():
                    assert isinstance(tensor, FakeTensor) and tensor.device == torch.device(device)
                    assert (tensor.shape, tensor.dtype) == (weight.shape, weight.dtype)
        part = tensorizer_ops.load_slices(tensorizer_ops.Reader(saved), {"w": (slice(None), 0)})
        assert part["w"].shape == (2,)


def test_fake_saves(path: str) -> None:
    """A save that would write nothing is an error, of tensors with values as well."""
    real = torch.ones(2)
    with FakeTensorMode():
        fake = torch.ones(2)
        for save, tensor in (
            (ops.save, fake),
            (tensorizer_ops.save, fake),
            (tensorizer_ops.save, real),
        ):
            with pytest.raises(ValueError, match="nothing can be saved under FakeTensorMode"):
                save(path, {"w": tensor})
        with tensorizer_ops.Writer(path) as writer:
            with pytest.raises(ValueError, match="'w' cannot be saved: it is a FakeTensor"):
                writer["w"] = fake
            writer.abort()
    assert not Path(path).exists()


def test_a_real_tensor_of_a_mode_that_has_ended(saved: str) -> None:
    with FakeTensorMode():
        fake = ops.load(saved)["w"]
    state = {"w": fake, "real": torch.ones(1)}
    with pytest.raises(ValueError, match="'w' cannot be saved: it is a tensor subclass"):
        ops.save(saved, state)
    with pytest.raises(ValueError, match="'w' cannot be saved: it is a FakeTensor"):
        tensorizer_ops.save(saved, state)


def test_a_file_that_is_replaced_between_its_names_and_its_values(
    tmp_path: Path, weight: torch.Tensor
) -> None:
    files = []
    for names in (["w"], ["w", "new"]):
        tensorizer_ops.save(tmp_path / "m.tensors", dict.fromkeys(names, weight))
        files.append((tmp_path / "m.tensors").read_bytes())
    # It is opened to see whether it can be traced, for what it has, and for the values.
    answer = replaced_after_opening(*files, openings=2)
    with scripted(answer) as server, FlopCounterMode(display=False):
        with pytest.raises(ValueError, match="has 2 tensors, and had 1"):
            ops.load(server.url())
        assert [*ops.load(server.url())] == ["w", "new"]
