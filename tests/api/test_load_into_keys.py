"""load_into says which names only one side has, and is never content with no name at all."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import tensorizer_ops
from support.samples import same
from tensorizer_ops import errors, load_into

OUTER = {"weight": torch.ones(2, 2), "bias": torch.ones(2)}


def prefixed(prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + name: tensor for name, tensor in OUTER.items()}


def model(scripted: bool = False, device: str = "cpu") -> Any:
    made = nn.Linear(2, 2, device=device)
    return torch.jit.script(made) if scripted else made


@pytest.mark.parametrize("scripted", [False, True])
def test_names_of_one_side_are_returned(path: str, scripted: bool) -> None:
    tensorizer_ops.save(path, {"bias": torch.ones(2), "extra": torch.ones(1), "b": torch.ones(1)})
    filled = model(scripted)
    keys = load_into(filled, path, strict=False)
    assert keys.missing_keys == ["weight"]
    assert keys.unexpected_keys == ["extra", "b"]
    assert tuple(keys) == tuple(filled.load_state_dict(tensorizer_ops.load(path), strict=False))
    with tensorizer_ops.Reader(path) as reader:
        assert reader.load_into(model(scripted), strict=False) == keys
        out = {"b": torch.zeros(1), "c": torch.zeros(1)}
        assert reader.load_into(out, strict=False) == (["c"], ["bias", "extra"])
    assert same(out["b"], torch.ones(1))
    tensorizer_ops.save(path, OUTER)
    assert load_into(model(scripted), path) == ([], [])


def test_a_tied_tensor_is_missing_once(path: str) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.other = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
            self.b.weight = self.a.weight

    tied = Tied()
    state = {f"other.{name}": tensor for name, tensor in OUTER.items()}
    tensorizer_ops.save(path, state)
    assert load_into(tied, path, strict=False) == (["a.weight", "a.bias", "b.bias"], [])
    tensorizer_ops.save(path, {**state, "b.weight": torch.ones(2, 2)})
    assert load_into(tied, path, strict=False) == (["a.bias", "b.bias"], [])


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("scripted", [False, True])
def test_no_name_at_all_is_an_error(path: str, device: str, strict: bool, scripted: bool) -> None:
    tensorizer_ops.save(path, {"w": torch.ones(2, 2), "b": torch.ones(2)})
    filled = model(scripted, device)
    before = {name: tensor.clone() for name, tensor in filled.state_dict().items()}
    with pytest.raises(errors.InvalidArgument, match="no name is on both sides\n") as error:
        load_into(filled, path, strict=strict)
    assert "missing in the file: 'weight', 'bias'\n" in str(error.value)
    assert str(error.value).endswith("only in the file: 'w', 'b'")  # no wrapper is the reason
    for name, tensor in filled.state_dict().items():
        assert tensor.is_meta or same(tensor, before[name])
    with pytest.raises(errors.InvalidArgument, match="no name is on both sides"):
        load_into({"c": torch.zeros(1)}, path, strict=strict)


def test_a_side_without_tensors_matches(path: str) -> None:
    tensorizer_ops.save(path, OUTER)
    assert load_into(nn.ReLU(), path, strict=False) == ([], ["weight", "bias"])
    tensorizer_ops.save(path, {})
    assert load_into(model(), path, strict=False) == (["weight", "bias"], [])
    assert load_into(nn.ReLU(), path) == ([], [])


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("prefix", "advice"),
    [
        ("module.", ", or fill torch.nn.ModuleDict({'module': model})"),
        ("_orig_mod.", ", or fill torch.nn.ModuleDict({'_orig_mod': model})"),
        ("module._orig_mod.", ""),
    ],
)
def test_wrappers_of_the_saved_model_are_named(
    path: str, prefix: str, advice: str, strict: bool
) -> None:
    tensorizer_ops.save(path, prefixed(prefix))
    names = rf"'{prefix}weight' in the file is 'weight' here: .*'module\.'.*'_orig_mod\.'"
    with pytest.raises(errors.InvalidArgument, match=names) as error:
        load_into(model(device="meta"), path, strict=strict)
    assert str(error.value).endswith("; save the module inside of the wrapper" + advice)


def test_the_advice_for_wrappers_works(path: str) -> None:
    tensorizer_ops.save(path, prefixed("module."))
    filled = model(device="meta")
    load_into(nn.ModuleDict({"module": filled}), path)
    assert same(filled.weight.detach(), OUTER["weight"])


def test_wrappers_of_the_module_to_fill_are_named(path: str) -> None:
    tensorizer_ops.save(path, {**OUTER, "other": torch.ones(1)})
    with pytest.raises(errors.InvalidArgument, match=r"fill the module inside of the wrapper$"):
        load_into(nn.ModuleDict({"module": model()}), path, strict=False)
    compiled = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"_orig_mod": nn.Linear(2, 2)}))
    tensorizer_ops.save(path, nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).state_dict())
    with pytest.raises(errors.InvalidArgument, match=r"'1.weight' in the file is '1._orig_mod.we"):
        load_into(compiled, path)
    keys = load_into(compiled, path, strict=False)
    assert keys.missing_keys == ["1._orig_mod.weight", "1._orig_mod.bias"]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_names_that_the_state_dict_hides(path: str, device: str) -> None:
    with torch.device(device):
        inner = nn.Linear(2, 2)
        wrapped = nn.Sequential(checkpoint_wrapper(inner), checkpoint_wrapper(nn.Linear(2, 2)))
        wrapped.again = inner.weight
    assert list(wrapped.state_dict()) == ["again", "0.weight", "0.bias", "1.weight", "1.bias"]
    state = {f"{i}.{name}": tensor for i in (0, 1) for name, tensor in OUTER.items()}
    tensorizer_ops.save(path, state)
    assert load_into(wrapped, path) == ([], [])
    assert wrapped.again is inner.weight
    assert all(torch.equal(tensor, torch.ones_like(tensor)) for tensor in wrapped.parameters())


def test_a_model_that_was_not_filled_computes_nan(tmp_path: Path) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.register_buffer("brain", torch.ones(2, dtype=torch.bfloat16))
            self.register_buffer("turned", torch.ones(2, dtype=torch.complex64))
            self.register_buffer("step", torch.tensor([3, 4]))
            self.register_buffer("packed", torch.zeros(2, dtype=torch.float4_e2m1fn_x2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    source = torch.jit.script(Mixed())
    code = tensorizer_ops.externalize(source, tmp_path / "w.tensors")
    restored = torch.jit.load(code)
    assert restored(torch.ones(1, 2)).isnan().all()
    assert restored.brain.isnan().all()
    assert torch.view_as_real(restored.turned.clone()).isnan().all()
    assert restored.step.tolist() == [0, 0]
    assert all(t.untyped_storage().nbytes() <= 8 for t in restored.state_dict().values())
    load_into(restored, tmp_path / "w.tensors")
    assert torch.equal(restored(torch.ones(1, 2)), source(torch.ones(1, 2)))
    assert restored.step.tolist() == [3, 4]


def test_one_default_for_strict() -> None:
    for function in (load_into, tensorizer_ops.load_constants, tensorizer_ops.Reader.load_into):
        assert inspect.signature(function).parameters["strict"].default is True


def test_copies_on_write_are_filled_apart(path: str) -> None:
    tensorizer_ops.save(path, {"a": torch.ones(3), "b": torch.ones(3)})
    a = torch.zeros(3)
    out = {"a": a, "b": a._lazy_clone()}
    load_into(out, path)
    assert same(out["a"], torch.ones(3)) and same(out["b"], torch.ones(3))
