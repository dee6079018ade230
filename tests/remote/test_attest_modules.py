"""`attest` with loaders: modules, buffers and attributes, and what is put back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.attested import flip, of_file
from tensorizer_ops import attest, errors


class Parts(torch.nn.Module):
    def __init__(self, stored: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.one, self.two = (torch.nn.Linear(8, 8, bias=False) for _ in range(2))
        self.register_buffer("mean", stored["mean"].clone())
        self.empty = torch.nn.Parameter(torch.empty(0))
        for name in ("one", "two"):
            self.get_submodule(name).weight.data.copy_(stored[name])

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            if name == "mean":
                self.get_buffer(name).copy_(weight)
            else:
                self.get_submodule(name).weight.data.copy_(weight.t().clone().t())


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    stored = {"one": torch.randn(8, 8), "two": torch.randn(8, 8), "mean": torch.randn(8)}
    tensorizer_ops.save(tmp_path / "m.tensors", stored)
    return Parts(stored)


def test_modules_that_a_loader_replaces(tmp_path: Path, parts: Parts) -> None:
    one, two = parts.one, parts.two

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        parts.load_weights(weights)
        parts.one, parts.two = parts.two, parts.one
        parts.register_buffer("mean", torch.zeros(8), persistent=False)

    found = attest(parts, tmp_path / "m.tensors", load_weights=load)
    other = "the loader puts another module in its place"
    assert found.not_compared["one"] == found.not_compared["two"] == other
    assert parts.one is one and parts.two is two and "mean" in parts.state_dict()


def test_a_buffer_that_only_the_file_fills(tmp_path: Path, parts: Parts) -> None:
    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        parts.load_weights((name, each) for name, each in weights if name != "mean")

    found = attest(parts, tmp_path / "m.tensors", load_weights=load)
    assert found.not_compared == {"mean": "8 of its elements are from no file"}


def test_a_parameter_with_the_memory_of_a_buffer(tmp_path: Path, parts: Parts) -> None:
    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = parts
            self.register_buffer("table", parts.one.weight.data)

    model = Table()
    assert next(iter(model.state_dict())) == "table"

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        parts.load_weights((name, each) for name, each in weights if name != "one")

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    assert found.not_compared == {"table": "64 of its elements are from no file"}


@pytest.mark.parametrize("mode", [torch.device("meta"), torch.inference_mode()])
def test_modes(tmp_path: Path, parts: Parts, mode: Any) -> None:
    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            if name == "one":
                parts.one.weight.data[:4].copy_(weight[:4])
                parts.one.weight.data[4:].copy_(weight[4:])
            else:
                parts.load_weights(iter([(name, weight)]))

    with mode:
        found = attest(parts, tmp_path / "m.tensors", load_weights=load)
    assert found.equal and found.compared == list(parts.state_dict()), found


def test_a_negated_part(tmp_path: Path, parts: Parts) -> None:
    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            if name == "one":
                torch._neg_view(parts.one.weight.data).copy_(-weight)
            else:
                parts.load_weights(iter([(name, weight)]))

    assert attest(parts, tmp_path / "m.tensors", load_weights=load).equal
    parts.one.weight.data.neg_()
    assert list(attest(parts, tmp_path / "m.tensors", load_weights=load).different) == [
        "one.weight"
    ]


def test_the_place_of_a_byte(tmp_path: Path, parts: Parts) -> None:
    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        weight = of_file(weights, "one")
        parts.one.weight.data.view(torch.uint8).copy_(weight.view(torch.uint8))

    flip(parts.one.weight, 4 * (5 * 8 + 3))
    found = attest(parts, tmp_path / "m.tensors", load_weights=load)
    text = "element [5, 3] is not that of what the loader makes of the file"
    assert found.different == {"one.weight": text}


def test_places_in_a_row_with_another_stride(tmp_path: Path) -> None:
    model = torch.nn.Module()
    model.row = torch.nn.Parameter(torch.empty_strided((1, 300), (1, 1)).zero_())
    tensorizer_ops.save(tmp_path / "m.tensors", {"row": torch.zeros(1, 300)})
    model.row.data[0, 148] = 1

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        model.row.data.copy_(of_file(weights, "row") * 1)

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    assert found.different["row"].startswith("element [0, 148] is not that of ")


def test_what_has_no_elements_to_compare(tmp_path: Path, parts: Parts) -> None:
    class Extra(Parts):
        def get_extra_state(self) -> dict[str, int]:
            return {"version": 1}

    extra = Extra(
        {
            **{name: parts.get_submodule(name).weight for name in ("one", "two")},
            "mean": parts.get_buffer("mean"),
        }
    )
    extra.lazy = torch.nn.LazyLinear(3, bias=False)
    for how in ({"load_weights": extra.load_weights}, {}):
        found = attest(extra, tmp_path / "m.tensors", **how)
        no_tensors = {name: why for name, why in found.not_compared.items() if "file" not in why}
        assert no_tensors == {
            "_extra_state": "it is dict, and no tensor",
            "lazy.weight": "it is not initialized until its module runs",
        }
    tensorizer_ops.save(tmp_path / "m.tensors", {"lazy.weight": torch.ones(3, 3)})
    assert attest(extra, tmp_path / "m.tensors").missing == []
    tensorizer_ops.save(tmp_path / "m.tensors", {"one": torch.ones(8, 8)})
    found = attest({"one": torch.empty(8, 8, device="meta")}, tmp_path / "m.tensors")
    assert found.not_compared == {"one": "it is on the meta device, and has no values"}


class Cached(Parts):
    """A model with a cache that a ``state_dict()`` leaves out, as for rotary embeddings."""

    def __init__(self, stored: dict[str, torch.Tensor]) -> None:
        super().__init__(stored)
        self.register_buffer("cache", torch.arange(8.0), persistent=False)


def rewrite(model: Cached, made: torch.Tensor) -> None:
    model.get_buffer("cache").copy_(made)


def rewrite_half(model: Cached, made: torch.Tensor) -> None:
    model.get_buffer("cache")[4:].copy_(made[4:])


def register_again(model: Cached, made: torch.Tensor) -> None:
    model.register_buffer("cache", made, persistent=False)


@pytest.mark.parametrize("write", [rewrite, rewrite_half, register_again])
def test_caches_that_a_loader_computes(
    tmp_path: Path, write: Callable[[Cached, torch.Tensor], None]
) -> None:
    stored = {"one": torch.randn(8, 8), "two": torch.randn(8, 8), "mean": torch.randn(8)}
    tensorizer_ops.save(tmp_path / "m.tensors", stored)
    model = Cached(stored)
    cache = model.get_buffer("cache")
    every = list(model.state_dict())

    def load(weights: Iterator[tuple[str, torch.Tensor]], made: torch.Tensor) -> None:
        model.load_weights(weights)
        write(model, made)

    for made in (torch.arange(8.0), cache * 1, -torch.arange(8.0)):
        found = attest(
            model, tmp_path / "m.tensors", load_weights=functools.partial(load, made=made)
        )
        assert [each for each in found.compared if each != "cache"] == every
        assert found.equal == bool(made[7] > 0)
        assert "cache" in {**found.different, **found.not_compared} or found.equal
        assert model.get_buffer("cache") is cache and torch.equal(cache, torch.arange(8.0))


def test_a_cache_that_a_loader_changes(tmp_path: Path) -> None:
    stored = {"one": torch.randn(8, 8), "two": torch.randn(8, 8), "mean": torch.randn(8)}
    tensorizer_ops.save(tmp_path / "m.tensors", stored)
    model = Cached(stored)

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        model.load_weights(weights)
        model.get_buffer("cache").mul_(2)

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    assert list(found.not_compared) == ["cache"] and not found.different
    assert torch.equal(model.get_buffer("cache"), torch.arange(8.0))

    def through_cache(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        model.get_buffer("cache").copy_(model.get_buffer("mean") * 1)
        model.get_buffer("mean").copy_(model.get_buffer("cache"))
        model.load_weights((name, each) for name, each in weights if name != "mean")

    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    model.register_buffer("freed", freed, persistent=False)
    model.get_buffer("cache").copy_(stored["mean"])
    found = attest(model, tmp_path / "m.tensors", load_weights=through_cache)
    text = "the loader copies it from 'cache' in memory, which was not compared"
    assert found.not_compared == {"mean": text} and "cache" not in found.compared


@pytest.mark.parametrize("begin", [0, 2, 8])
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_cache_that_a_file_has_and_a_loader_skips(
    tmp_path: Path, begin: int, is_tied: bool
) -> None:
    """Or of which it writes only a part: the rest may be of another file."""
    stored = {"one": torch.randn(8, 8), "two": torch.randn(8, 8), "mean": torch.randn(8)}
    tensorizer_ops.save(tmp_path / "m.tensors", stored | {"cache": torch.arange(8.0)})
    model = Cached(stored)
    cache = model.get_buffer("cache")
    if is_tied:
        del model.cache
        model.register_buffer("again", cache, persistent=False)
        model.register_buffer("cache", cache, persistent=False)

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        each = dict(weights)
        cache[begin:].copy_(each.pop("cache")[begin:])
        model.load_weights(iter(each.items()))

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    if begin:
        assert found.not_compared == {"cache": f"{begin} of its elements are from no file"}
    else:
        assert found.equal and "cache" in found.compared


@pytest.mark.parametrize("how", ["names", "copy", "cast"])
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e8m0fnu"])
def test_types_that_lose_most_of_the_values(tmp_path: Path, how: str, name: str) -> None:
    """An exponent of 8 bits has no sign, so that most models would be equal."""
    dtype, file = getattr(torch, name), tmp_path / "m.tensors"
    stored = torch.tensor([1.4, -1.4, 0.3, -100.0])
    model = torch.nn.Module()
    model.register_buffer("w", stored.to(dtype))

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for _, each in weights:
            model.get_buffer("w").copy_(each.to(dtype) if how == "cast" else each)

    given = {} if how == "names" else {"load_weights": load}
    tensorizer_ops.save(file, {"w": stored})
    found = attest(model, file, **given)
    if name == "bfloat16":
        assert found.equal
    else:
        why = f"its type torch.{name} loses most of what torch.float32 in the file tells"
        assert found.not_compared == {"w": why} and not found.compared
    tensorizer_ops.save(file, {"w": stored.to(dtype)})
    assert attest(model, file, **given).equal


@pytest.mark.parametrize(
    ("own", "stored"),
    [
        ("int8", "float32"),
        ("int64", "float32"),
        ("bool", "float32"),
        ("int8", "int64"),
        ("bool", "int8"),
        ("float32", "complex64"),
        ("float32", "int64"),
        ("bfloat16", "int16"),
    ],
)
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_types_that_lose_the_values_of_another_kind(tmp_path: Path, own: str, stored: str) -> None:
    own_type, other = getattr(torch, own), getattr(torch, stored)
    model, file = torch.nn.Module(), tmp_path / "m.tensors"
    model.register_buffer("w", torch.ones(3, dtype=own_type))

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for _, each in weights:
            model.get_buffer("w").copy_(each)

    tensorizer_ops.save(file, {"w": torch.ones(3, dtype=other)})
    why = f"its type {own_type} loses most of what {other} in the file tells"
    assert attest(model, file, load_weights=load).not_compared == {"w": why}


@pytest.mark.parametrize("name", ["int64", "float16"])
def test_integers_that_are_widened_lose_nothing(tmp_path: Path, name: str) -> None:
    model, file = torch.nn.Module(), tmp_path / "m.tensors"
    model.register_buffer("w", torch.arange(3, dtype=getattr(torch, name)))
    tensorizer_ops.save(file, {"w": torch.arange(3, dtype=torch.int8)})
    found = attest(model, file, load_weights=lambda named: [model.w.copy_(t) for _, t in named])
    assert found.equal


class WithScale(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3))
        self.scale = torch.full((3,), scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w * self.scale


class WithDefault(WithScale):
    scale = torch.ones(3)


WAYS: dict[str, Callable[[torch.nn.Module, torch.Tensor], object]] = {
    "replaces": lambda model, each: setattr(model, "scale", each.clone()),
    "writes": lambda model, each: model.scale.copy_(each),
    "gives it other memory": lambda model, each: setattr(model.scale, "data", each.clone()),
    "multiplies": lambda model, each: model.scale.mul_(each),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [WithScale, WithDefault])
def test_an_attribute_that_a_loader_fills(tmp_path: Path, way: str, kind: Any) -> None:
    """It is compared if it is filled under another name, and has what it had before."""
    model, file = kind(9.0), tmp_path / "m.tensors"
    tensorizer_ops.save(file, {"w": torch.ones(3), "q.scale": torch.full((3,), 2.0)})

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, each in weights:
            if name == "w":
                model.w.data.copy_(each)
            else:
                WAYS[way](model, each)

    for scale in (9.0, 2.0):
        model.scale.fill_(scale)
        found = attest(model, file, load_weights=load)
        assert found.equal == (scale == 2.0 and way in ("replaces", "writes"))
        assert model.scale.tolist() == [scale] * 3


@pytest.mark.parametrize("before", [None, [9.0]])
def test_a_tensor_that_a_loader_puts_where_none_was(tmp_path: Path, before: object) -> None:
    model, file = WithScale(9.0), tmp_path / "m.tensors"
    tensorizer_ops.save(file, {"w": torch.ones(3)})
    model.scale = before

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for _, each in weights:
            model.w.data.copy_(each)
            model.scale = each * 2

    assert "scale" in attest(model, file, load_weights=load).not_compared
    assert model.scale is before


def test_attributes_that_cannot_be_copied_as_they_are(tmp_path: Path) -> None:
    """One that is expanded, one that is conjugated, and one that was made for inference."""
    model, file = torch.nn.Module(), tmp_path / "m.tensors"
    model.register_buffer("w", torch.ones(3))
    tensorizer_ops.save(file, {"w": torch.ones(3)})
    wide, pair = torch.ones(1), torch.ones(3, dtype=torch.complex64)
    model.wide, model.pair = wide.expand(1 << 40), pair.conj()
    with torch.inference_mode():
        model.own = torch.ones(3)

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for _, each in weights:
            model.w.copy_(each)
        with torch.inference_mode():
            for tensor in (wide, pair, model.own):
                tensor.mul_(2)

    assert attest(model, file, load_weights=load).different.keys() == {"wide", "pair", "own"}
    assert wide.item() == 1 and pair.tolist() == [1] * 3 and model.own.tolist() == [1] * 3


def rebuilds(model: torch.nn.Module, weight: torch.Tensor) -> None:
    model.inverse = torch.ones(3, dtype=torch.complex64).conj()


def grows(model: torch.nn.Module, weight: torch.Tensor) -> None:
    torch.cat([weight, weight], out=model.scratch)


def swaps(model: torch.nn.Module, weight: torch.Tensor) -> None:
    torch.utils.swap_tensors(model.scratch, torch.zeros(4, device="meta"))


def replaces_empty(model: torch.nn.Module, weight: torch.Tensor) -> None:
    model.empty = torch.rand(8)


def fills_packed(model: torch.nn.Module, weight: torch.Tensor) -> None:
    model.packed.view(torch.uint8).fill_(3)


@pytest.mark.parametrize(
    ("way", "name"),
    [
        (rebuilds, None),
        (grows, "scratch"),
        (swaps, "scratch"),
        (replaces_empty, "empty"),
        (fills_packed, "packed"),
    ],
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_attributes_that_are_hard_to_put_back(tmp_path: Path, way: Any, name: str | None) -> None:
    """All else is put back, whatever becomes of them."""
    model, file = torch.nn.Module(), tmp_path / "m.tensors"
    own = torch.nn.Parameter(torch.ones(3))
    model.w, model.scratch, model.empty = own, torch.arange(4.0), torch.rand(8)
    model.empty.untyped_storage().resize_(0)
    model.inverse = torch.ones(3, dtype=torch.complex64).conj()
    model.packed = torch.zeros(8, dtype=torch.uint8).view(torch.uint4)
    attributes = {leaf: value for leaf, value in vars(model).items() if leaf in ("w", "inverse")}
    tensorizer_ops.save(file, {"w": torch.ones(3)})

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for _, weight in weights:
            model.w.data.copy_(weight)
            way(model, weight)
            model.w.data = weight * 9

    found = attest(model, file, load_weights=load)
    assert found.not_compared.keys() | found.different.keys() == {"w", *([name] if name else [])}
    assert model.w is own and own.tolist() == [1] * 3
    assert all(getattr(model, leaf) is value for leaf, value in attributes.items())
    assert model.packed.view(torch.uint8).tolist() == [0] * 8
    assert way is swaps or model.scratch.tolist() == [0, 1, 2, 3]


class WithProperty(WithDefault):
    @property
    def scale(self) -> torch.Tensor:
        return torch.full((3,), 9.0)

    @scale.setter
    def scale(self, value: torch.Tensor) -> None:
        pass


class WithDescriptor(WithScale):
    def __getattribute__(self, name: str) -> Any:
        return torch.full((3,), 9.0) if name == "scale" else super().__getattribute__(name)


def test_what_a_module_gets_by_the_name_of_an_attribute(tmp_path: Path) -> None:
    tensorizer_ops.save(
        file := tmp_path / "m.tensors", {"w": torch.ones(3), "scale": torch.ones(3)}
    )
    assert attest(WithProperty(1.0), file).missing == ["scale"]
    with pytest.raises(errors.InvalidArgument, match="has another tensor 'scale' than the module"):
        attest(WithDescriptor(1.0), file)


class WithCode(torch.nn.Module):
    """An attribute and a parameter with names that TorchScript's modules have themselves."""

    def __init__(self, code: float) -> None:
        super().__init__()
        self.code = torch.full((3,), code)
        self.graph = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.code * self.graph


def test_names_that_torchscript_has_itself(tmp_path: Path) -> None:
    file = tmp_path / "m.tensors"
    tensorizer_ops.save(file, {"code": torch.ones(3), "graph": torch.ones(3)})
    for code in (1.0, 9.0):
        assert attest(torch.jit.script(WithCode(code)), file).equal == (code == 1)


@pytest.mark.parametrize("is_inner", [False, True])
def test_attributes_of_torchscript(tmp_path: Path, is_inner: bool) -> None:
    prefix, file = "0." * is_inner, tmp_path / "m.tensors"
    tensorizer_ops.save(file, {f"{prefix}w": torch.ones(3), f"{prefix}scale": torch.ones(3)})
    for scale in (1.0, 9.0):
        model = torch.jit.script(WithScale(scale))
        model = torch.nn.Sequential(model) if is_inner else model
        assert attest(model, file).equal == (scale == 1)
    with pytest.raises(errors.HashMismatch, match="scale"):
        tensorizer_ops.verify_tensors(file, model)


def test_a_parameter_that_has_lost_its_elements(tmp_path: Path, parts: Parts) -> None:
    parts.one.weight.data = torch.empty(0)
    parts.load_weights, file = lambda weights: None, tmp_path / "m.tensors"
    tensorizer_ops.save(file, {"one.weight": torch.randn(8, 8)})
    found = attest(parts, file, load_weights=parts.load_weights)
    assert found.not_compared["one.weight"] == "it has no elements, and in the file it has some"
    assert found.compared == ["empty"]
