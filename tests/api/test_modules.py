"""Modules with weights in a file: filled in place, created anew, tied, scripted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensorizer_ops
from tensorizer_ops import externalize, load_into


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 30, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(3.0))
        self.register_buffer("scratch", torch.ones(4), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(tokens))) * self.scale


TOKENS = torch.arange(12)


def make(seed: int) -> Tied:
    torch.manual_seed(seed)
    model = Tied().eval()
    model.norm.running_mean.uniform_()
    model.scale.fill_(seed)
    return model


def same_state(a: nn.Module, b: nn.Module) -> bool:
    x, y = a.state_dict(), b.state_dict()
    return list(x) == list(y) and all(torch.equal(x[name], y[name]) for name in x)


@pytest.fixture
def saved(path: str) -> Tied:
    model = make(1)
    tensorizer_ops.save(path, model.state_dict())
    return model


def test_what_has_memory_is_filled_where_it_is(path: str, saved: Tied) -> None:
    model = make(2)
    before = {name: (id(p), p.data_ptr()) for name, p in model.named_parameters()}
    load_into(model, path, verify="all")
    assert same_state(model, saved)
    assert before == {name: (id(p), p.data_ptr()) for name, p in model.named_parameters()}
    assert all(p.requires_grad for p in model.parameters())


def test_a_module_without_memory_gets_new_tensors_that_stay_tied(path: str, saved: Tied) -> None:
    with torch.device("meta"):
        model = Tied().eval()
    model.scratch = torch.ones(4)
    load_into(model, path)
    assert same_state(model, saved)
    assert model.head.weight is model.embed.weight
    assert isinstance(model.embed.weight, nn.Parameter) and model.embed.weight.requires_grad
    assert torch.equal(model(TOKENS), saved(TOKENS))


@pytest.mark.parametrize("digests", ["false", "true"])
def test_what_is_loaded_may_be_pinned(path: str, digests: str) -> None:
    source = torch.nn.Linear(3, 4)
    tensorizer_ops.save(path, source.state_dict(), options={"digests": digests})
    pinned = {"digest": tensorizer_ops.digest(path)}
    with torch.device("meta"):
        models = [torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)]
    models.append(torch.nn.Linear(3, 4))
    models[1].bias = torch.nn.Parameter(torch.zeros(4))
    for number, model in enumerate(models):
        if number == 1 and digests == "false":
            with pytest.raises(ValueError, match="all tensors are loaded at once"):
                load_into(model, path, options=pinned)
            assert not model.bias.any()
            continue
        load_into(model, path, options=pinned)
        assert same_state(model, source)
        with pytest.raises(tensorizer_ops.errors.HashMismatch, match="another model"):
            load_into(model, path, options={"digest": "0" * 64})
    empty = torch.nn.Module()
    tensorizer_ops.save(path, {})
    load_into(empty, path, options={"digest": tensorizer_ops.digest(path)})
    with pytest.raises(tensorizer_ops.errors.HashMismatch, match="another model"):
        load_into(empty, path, options=pinned)


def test_buffers_that_are_not_persistent_are_filled_where_they_are_stored(path: str) -> None:
    tensorizer_ops.save(path, {**make(1).state_dict(), "scratch": torch.arange(4.0)})
    with torch.device("meta"):
        model = Tied()
    for module in (model, make(2)):
        load_into(module, path)
        assert module.scratch.tolist() == [0, 1, 2, 3]
        assert "scratch" not in module.state_dict()


def test_a_buffer_without_memory_has_to_be_stored(path: str, saved: Tied) -> None:
    with torch.device("meta"):
        model = Tied()
    with pytest.raises(ValueError, match="missing in the file: 'scratch'"):
        load_into(model, path)
    load_into(model, path, strict=False)
    assert model.scratch.is_meta
    assert same_state(model, saved)


def test_one_name_of_a_tied_tensor_is_enough(path: str) -> None:
    source = make(1)
    state = source.state_dict()
    del state["embed.weight"]
    tensorizer_ops.save(path, state)
    model = make(2)
    load_into(model, path)
    assert same_state(model, source)


def test_everything_that_does_not_fit_is_listed_and_nothing_touched(path: str) -> None:
    state = make(1).state_dict()
    del state["norm.bias"], state["scale"]
    state["extra"] = torch.ones(1)
    state["norm.weight"] = torch.ones(9)
    state["norm.running_mean"] = state["norm.running_mean"].double()
    tensorizer_ops.save(path, state)
    model = make(2)
    with pytest.raises(ValueError) as failure:
        load_into(model, path)
    message = str(failure.value)
    for part in (
        "missing in the file: 'scale', 'norm.bias'",
        "only in the file: 'extra'",
        "'norm.weight' (float32[9] in the file, float32[8] here)",
        "'norm.running_mean' (float64[8] in the file, float32[8] here)",
    ):
        assert part in message
    with pytest.raises(ValueError, match="different") as failure:
        load_into(model, path, strict=False)
    assert "missing" not in str(failure.value)
    assert same_state(model, make(2))


def test_not_strict_fills_what_there_is(path: str) -> None:
    tensorizer_ops.save(path, {"scale": torch.tensor(7.0), "extra": torch.ones(1)})
    model = make(2)
    load_into(model, path, strict=False)
    assert model.scale == 7
    assert torch.equal(model.embed.weight, make(2).embed.weight)


class WithState(nn.Linear):
    state = torch.arange(3.0)

    def get_extra_state(self) -> torch.Tensor:
        return self.state

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.state = state


def test_extra_state_is_left_to_load_state_dict(path: str) -> None:
    source = WithState(2, 2)
    source.state = torch.ones(3)
    tensorizer_ops.save(path, source.state_dict())
    model = WithState(2, 2)
    with pytest.raises(ValueError, match="only in the file: '_extra_state'"):
        load_into(model, path)
    load_into(model, path, strict=False)
    assert torch.equal(model.weight, source.weight)
    assert model.state.tolist() == [0, 1, 2]
    model.load_state_dict(tensorizer_ops.load(path))
    assert same_state(model, source)


def test_an_externalized_module_is_small_and_computes_the_same(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tied = make(1)
            self.wide = nn.Linear(1000, 1000)

        def forward(
            self, tokens: torch.Tensor, x: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return self.tied(tokens), self.wide(x)

    scripted = torch.jit.script(Model().eval())
    x = torch.rand(2, 1000)
    expected = scripted(TOKENS, x)
    weights = tmp_path / "weights.tensors"
    code = externalize(scripted, weights)
    assert code == str(tmp_path / "weights.pt")
    assert sorted(os.listdir(tmp_path)) == ["weights.pt", "weights.tensors"]
    assert os.path.getsize(code) < 100_000 < os.path.getsize(weights)
    names = torch.ops.tensorizer.names(str(weights))
    assert ("tied.embed.weight" in names) != ("tied.head.weight" in names)
    assert all(torch.equal(a, b) for a, b in zip(scripted(TOKENS, x), expected, strict=True))

    restored = torch.jit.load(code)
    load_into(restored, weights)
    assert all(torch.equal(a, b) for a, b in zip(restored(TOKENS, x), expected, strict=True))
    state = restored.state_dict()
    with torch.no_grad():
        state["tied.embed.weight"].fill_(5)
    assert torch.equal(state["tied.head.weight"], state["tied.embed.weight"])
    assert [p.requires_grad for p in restored.parameters()] == [
        p.requires_grad for p in scripted.parameters()
    ]


class Mirrored(nn.Module):
    """A parameter, and a conjugate or negative view of it, which has other values."""

    def __init__(self, negative: bool) -> None:
        super().__init__()
        x = torch.tensor([1 + 2j, 3 - 4j])
        self.x = nn.Parameter(x.imag if negative else x)
        self.register_buffer("mirrored", x.conj().imag if negative else x.conj())

    def forward(self) -> torch.Tensor:
        return self.x * self.mirrored


@pytest.mark.parametrize("negative", [False, True])
def test_views_with_other_values_are_not_tied(tmp_path: Path, negative: bool) -> None:
    scripted = torch.jit.script(Mirrored(negative))
    restored = torch.jit.load(externalize(scripted, tmp_path / "weights.tensors"))
    load_into(restored, tmp_path / "weights.tensors")
    assert same_state(restored, scripted)
    assert torch.equal(restored(), scripted())
    # If both have memory and share it, the file must still contain both names.
    live = Mirrored(negative)
    with torch.no_grad():
        live.x.zero_()
    load_into(live, tmp_path / "weights.tensors")
    assert same_state(live, scripted)
    tensorizer_ops.save(tmp_path / "weights.tensors", {"x": live.x})
    with pytest.raises(ValueError, match="missing in the file: 'mirrored'"):
        load_into(live, tmp_path / "weights.tensors")


def test_the_code_goes_where_a_save_would_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    scripted = torch.jit.script(make(1))
    places: list[tuple[str | bytes, str | bytes | None, str]] = [
        ("~/w.tensors", None, str(tmp_path / "w.pt")),
        ("new/folder/w.tensors", None, "new/folder/w.pt"),
        ("w.tensors", "~/another/code.pt", str(tmp_path / "another/code.pt")),
        ("w.tensors", b"code.pt", "code.pt"),
        (b"\xffw.tensors", None, "\udcffw.pt"),
        (f"file://{tmp_path}/a%20b.tensors", None, str(tmp_path / "a b.pt")),
    ]
    for uri, script, expected in places:
        assert externalize(scripted, uri, script) == expected
        with open(expected, "rb") as file:
            restored = torch.jit.load(file)
        load_into(restored, uri)
        assert same_state(restored, scripted)


def test_the_code_never_replaces_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scripted = torch.jit.script(make(1))
    (tmp_path / "link.pt").symlink_to("model.pt")
    for uri, script in (
        ("model.pt", None),
        ("weights", "./weights"),
        ("link.pt", "model.pt"),
        (f"file://{tmp_path}/model%2ept", "model.pt"),
    ):
        with pytest.raises(ValueError, match="the code would replace the weights"):
            externalize(scripted, uri, script)
    assert os.listdir(tmp_path) == ["link.pt"]


def test_what_cannot_be_externalized_leaves_nothing_behind(tmp_path: Path) -> None:
    scripted = torch.jit.script(make(1))
    with pytest.raises(ValueError, match="frozen"):
        externalize(torch.jit.freeze(scripted), tmp_path / "weights.tensors")
    eager: Any = make(1)
    with pytest.raises(TypeError, match="module is Tied, and must be a scripted module"):
        externalize(eager, tmp_path / "weights.tensors")
    for uri, script in (("fd:3", None), ("s3://b/w.tensors", None), ("w.tensors", "s3://b/w.pt")):
        with pytest.raises(ValueError, match="script= "):
            externalize(scripted, uri, script)
    with pytest.raises(OSError):
        externalize(scripted, "/proc/no/weights.tensors", tmp_path / "code.pt")
    assert os.listdir(tmp_path) == []
