"""load_into casts to another dtype only if the caller asks for it."""

from __future__ import annotations

import pytest
import torch

import tensorizer_ops
from support.samples import same

ops = torch.ops.tensorizer

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]
VALUES = torch.linspace(-3, 3, 60 * 80).view(60, 80)
INTEGERS = torch.arange(5)
COMPLEX = torch.ones(3, dtype=torch.complex64)


@pytest.fixture
def saved(path: str) -> str:
    tensors = {str(dtype): VALUES.to(dtype) for dtype in FLOATS}
    ops.save(path, tensors | {"i": INTEGERS, "c": COMPLEX})
    return path


@pytest.mark.parametrize("verify", ["none", "all"])
@pytest.mark.parametrize("stored", FLOATS)
def test_outputs_of_any_floating_type(saved: str, stored: torch.dtype, verify: str) -> None:
    expected = VALUES.to(stored)
    for dtype in FLOATS:
        for out in (torch.zeros(60, 80, dtype=dtype), torch.zeros(80, 60, dtype=dtype).t()):
            ops.load_into(saved, [str(stored)], [out], verify=verify, cast=True)
            assert same(out.contiguous(), expected.to(dtype))


def test_a_reader_casts_and_integers_stay(saved: str) -> None:
    reader = torch.classes.tensorizer.Reader(saved)
    out = [torch.zeros(60, 80), torch.zeros(5, dtype=torch.int64)]
    reader.load_into(["torch.float64", "i"], out, "none", 0, True)
    assert same(out[0], VALUES)
    assert same(out[1], INTEGERS)


@pytest.mark.parametrize(
    ("name", "wrong", "hint"),
    [
        ("torch.float16", torch.zeros(60, 80), True),
        ("i", torch.zeros(5, dtype=torch.int32), False),
        ("i", torch.zeros(5), False),
        ("c", torch.zeros(3), False),
    ],
)
def test_nothing_is_cast_unless_it_was_said(
    saved: str, name: str, wrong: torch.Tensor, hint: bool
) -> None:
    first = torch.zeros(60, 80)
    names, out = ["torch.float32", name], [first, wrong]
    for cast in (False,) if hint else (False, True):
        with pytest.raises(ValueError, match="and its output is") as error:
            ops.load_into(saved, names, out, cast=cast)
        assert ("cast=True" in str(error.value)) == hint
        assert not first.any() and not wrong.any()


def test_a_changed_byte_is_noticed_although_it_is_cast(saved: str) -> None:
    offset = int(torch.classes.tensorizer.Reader(saved).stored("torch.float16")["data_offset"])
    with open(saved, "r+b") as file:
        file.seek(offset)
        file.write(b"\x55\x55")
    out = torch.ones(60, 80)
    with pytest.raises(tensorizer_ops.errors.HashMismatch):
        ops.load_into(saved, ["torch.float16"], [out], verify="all", cast=True)


def test_in_a_compiled_function(saved: str) -> None:
    def fill(cast: bool) -> torch.Tensor:
        out = torch.zeros(60, 80)
        ops.load_into(saved, ["torch.float64"], [out], cast=cast)
        return out + 0

    compiled = torch.compile(fill, backend="aot_eager", fullgraph=True)
    assert same(compiled(True), fill(True))
    with pytest.raises(Exception, match="another shape or dtype"):
        compiled(False)


class Tied(torch.nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8, dtype=dtype)
        self.second = torch.nn.Linear(8, 8, bias=False, dtype=dtype)
        self.second.weight = self.first.weight
        self.frozen = torch.nn.Parameter(torch.ones(2, dtype=dtype), requires_grad=False)
        self.register_buffer("steps", torch.arange(3))


def save_module(path: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    state: dict[str, torch.Tensor] = Tied(dtype).state_dict()
    tensorizer_ops.save(path, state)
    return state


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_modules_keep_their_types(path: str, device: str) -> None:
    state = save_module(path, torch.float16)
    with torch.device(device):
        module = Tied()
    before = dict(module.named_parameters())
    with pytest.raises(ValueError, match=r"float16.*\n  cast=True casts types"):
        tensorizer_ops.load_into(module, path)
    tensorizer_ops.load_into(module, path, cast=True)
    for name, tensor in module.state_dict().items():
        expected = state[name].float() if state[name].is_floating_point() else state[name]
        assert same(tensor, expected)
    assert module.first.weight is module.second.weight
    assert not module.frozen.requires_grad and module.first.weight.requires_grad
    if device == "cpu":
        assert all(parameter is before[name] for name, parameter in module.named_parameters())


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_modules_get_a_type(path: str, device: str, stored: torch.dtype) -> None:
    state = save_module(path, stored)
    with torch.device(device):
        module = Tied()
    tensorizer_ops.load_into(module, path, dtype=torch.bfloat16)
    for name, tensor in module.state_dict().items():
        floating = state[name].is_floating_point()
        assert same(tensor, state[name].bfloat16() if floating else state[name])
    assert module.first.weight is module.second.weight
    assert not module.frozen.requires_grad


def test_an_optimizer_goes_on_with_another_type(path: str) -> None:
    save_module(path, torch.float32)
    module = Tied()
    module.first.weight.tag = "mine"
    weight = module.first.weight
    optimizer = torch.optim.SGD(module.parameters(), lr=1)
    tensorizer_ops.load_into(module, path, dtype=torch.float64)
    assert module.first.weight is weight and weight.tag == "mine"
    assert weight.dtype == torch.float64
    before = weight.detach().clone()
    weight.sum().backward()
    optimizer.step()
    assert torch.equal(module.first.weight, before - 1)


def test_types_that_cannot_be(path: str) -> None:
    save_module(path, torch.float32)
    module = Tied()
    with pytest.raises(ValueError, match="dtype is int8"):
        tensorizer_ops.load_into(module, path, dtype=torch.int8)
    with pytest.raises(TypeError, match=r"dtype is str.*: did you mean torch\.float16\?"):
        tensorizer_ops.load_into(module, path, dtype="float16")
    tensorizer_ops.save(path, Tied().state_dict() | {"steps": torch.ones(3)})
    with pytest.raises(ValueError, match="'steps'"):
        tensorizer_ops.load_into(module, path, cast=True)
