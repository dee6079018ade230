"""`attest`: what a program has in memory, beside a file."""

from __future__ import annotations

import fractions
import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy
import pytest
import safetensors.torch
import torch
from torch.masked import masked_tensor
from torch.testing._internal.two_tensor import TwoTensor

import tensorizer_ops
from local_servers.web import Web
from support.attested import Halved, flip, halved, of_file, plain, with_
from support.odd_tensors import TENSORS, Named, Wrapper
from support.samples import same, zoo
from support.signer import Signer
from tensorizer_ops import attest, errors

T = TypeVar("T")


ROWS, COLUMNS, PADDED = 700, 1000, 1024  # a matrix has 2.7 chunks


@pytest.mark.parametrize("hashes", ["chunked", "sha256"])
def test_every_type(tmp_path: Path, hashes: str) -> None:
    tensors = zoo()
    tensorizer_ops.save(tmp_path / "m.tensors", tensors, hashes=hashes)
    found = attest(tensors, tmp_path / "m.tensors")
    assert found.equal and found.compared == list(tensors)
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            continue
        data = tensor.view(-1).view(torch.uint8).clone()
        data[-1] ^= 1
        bad = data.view(tensor.dtype).view(tensor.shape)
        found = attest({**tensors, name: bad}, tmp_path / "m.tensors")
        last = [size - 1 for size in tensor.shape]
        assert found.different == {name: f"element {last} is not that of the file"}
        assert not found.equal and not found.not_compared


def test_places(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(ROWS, COLUMNS), "b": torch.randn(3)}
    tensorizer_ops.save(tmp_path / "m.tensors", tensors)
    places = [0, 262_143, 262_144, 262_145, 699_999]
    for place in places:
        tensors["a"].view(-1)[place] += 1
    indices = ", ".join(str([place // COLUMNS, place % COLUMNS]) for place in places)
    text = f"elements {indices} are not those of the file"
    assert attest(tensors, tmp_path / "m.tensors").different == {"a": text}
    tensors["a"] += 1
    (text,) = attest(tensors, tmp_path / "m.tensors").different.values()
    assert text.startswith("elements [0, 0], [0, 1],") and "and 699990 more" in text


def test_only_digests_are_read(web: Web) -> None:
    tensors = {f"t{i}": torch.randn(1 << 20) for i in range(8)}
    tensorizer_ops.save(web.root / "m.tensors", tensors)
    web.requests()
    assert attest(tensors, web.url("m.tensors")).equal
    sent = sum(int(line.split('"')[2].split()[1]) for line in web.requests())
    assert sent < 2 << 20  # of 32 MiB


def test_names_types_and_shapes(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    stored = {"a": torch.randn(4, 4), "b": torch.randn(4), "c": torch.arange(4)}
    tensorizer_ops.save(path, {**stored, "more": torch.zeros(1)})
    given = {"a": stored["a"].t(), "b": stored["b"].half(), "c": stored["c"].int()}
    given |= {"d": torch.zeros(2), "b2": given["b"], "e": stored["b"].view(2, 2)}
    found = attest(given, path)
    assert found.missing == ["more"]
    assert found.compared == ["b"]  # b2 is tied to it
    assert sorted(found.different) == ["a", "c"]
    assert found.different["c"] == "it is torch.int32 [4], and torch.int64 [4] in the file"
    none = "the file has no tensor of this name"
    assert found.not_compared == {"d": none, "e": none}


def test_one_element_with_the_stride_of_a_matrix(tmp_path: Path) -> None:
    column = torch.randn(4, 4)[:1, 1]
    assert column.is_contiguous() and column.stride() == (4,)
    for stored in (column.clone(), column.double()):
        tensorizer_ops.save(tmp_path / "m.tensors", {"w": stored})
        assert attest({"w": column}, tmp_path / "m.tensors").equal
        found = attest({"w": column + 1}, tmp_path / "m.tensors")
        assert found.different == {"w": "element [0] is not that of the file"}


class Opaque(Wrapper):
    """Does not tell what it has."""

    @property
    def __tensor_flatten__(self) -> Any:
        raise AttributeError


class Functional(torch.nn.Parameter):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Multiplied(torch.nn.Parameter):
    def __rmatmul__(self, other: torch.Tensor) -> torch.Tensor:
        return 2 * torch.matmul(other, self)


class Slotted(torch.nn.Parameter):
    __slots__ = ("scale",)


class Scaled(torch.nn.Parameter):
    scale = 2.0


def of_class(scale: Any) -> Any:
    return type("ScaledByClass", (torch.nn.Parameter,), {"scale": scale})


class ScaledBehind(torch.nn.Parameter, type("Mixed", (), {"scale": torch.ones(1)})):  # type: ignore[misc]
    """Has a scale in a class that comes behind those of torch."""


class Loaded(torch.nn.Parameter, Generic[T]):
    """Has in its class what a loader needs."""

    packed_dim, packed_factor, loader = 1, fractions.Fraction(8, 3), print
    shards: ClassVar = {"q": 0, "k": [1, None]}

    @property
    def output_dim(self) -> int:
        return 0


class Times:
    def __init__(self, scale: Any) -> None:
        self.scale = scale

    def call(self, tensor: torch.Tensor) -> Any:
        return tensor * self.scale


def times(scale: torch.Tensor) -> Any:
    return lambda tensor: tensor * scale


def by_default(scale: torch.Tensor) -> Any:
    def scaled(tensor: torch.Tensor, by: torch.Tensor = scale) -> torch.Tensor:
        return tensor * by

    return scaled


@pytest.mark.parametrize("by_loader", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        Functional,
        Multiplied,
        Scaled,
        ScaledBehind,
        of_class(numpy.float32(2)),
        of_class([2.0]),
        of_class({"w": torch.ones(1)}),
        halved,
        lambda data: with_(Slotted(data), scale=torch.ones(1)),
        lambda data: with_(data.as_subclass(Named), scale=2.0),
        lambda data: with_(data.as_subclass(Named), absmax=torch.ones(1)),
        lambda data: with_(data.as_subclass(Named), scales=[{"w": torch.ones(1)}]),
        lambda data: with_(data.as_subclass(Named), quant_state=object()),
        lambda data: with_(data.as_subclass(Named), scaled=torch.ones(1).mul),
        lambda data: with_(data.as_subclass(Named), scaled=functools.partial(Times(2.0).call)),
        lambda data: with_(data.as_subclass(Named), scaled=times(torch.ones(1))),
        lambda data: with_(data.as_subclass(Named), scaled=by_default(torch.ones(1))),
        lambda data: with_(data.as_subclass(Named), call=with_(lambda x: x, scale=torch.ones(1))),
        Wrapper,
        Opaque,
    ],
)
def test_subclasses_that_may_mean_something_else(
    tmp_path: Path, make: Any, by_loader: bool
) -> None:
    stored = torch.randn(8)
    tensorizer_ops.save(tmp_path / "m.tensors", {"w": stored})
    model = torch.nn.Module()
    model.register_buffer("w", make(stored.clone()))
    kind = type(model.w).__name__
    why = f"it is {kind}, which may change what its elements mean, such as by a scale"
    if not by_loader:
        found = attest(model, tmp_path / "m.tensors")
    elif isinstance(model.w, Wrapper | Halved):
        with pytest.raises(ValueError, match="'w' cannot be compared by load_weights=: it is "):
            attest(model, tmp_path / "m.tensors", load_weights=list)
        return
    else:
        load = {"load_weights": lambda weights: plain(model.w).copy_(of_file(weights, "w"))}
        found = attest(model, tmp_path / "m.tensors", **load)
    assert found.not_compared == {"w": why} and not found.compared


def test_subclasses_that_mean_their_elements(tmp_path: Path) -> None:
    stored = torch.randn(8)
    tensorizer_ops.save(tmp_path / "m.tensors", {"w": stored})
    named = with_(
        stored.as_subclass(Named),
        output_dim=1,
        weight_loader=functools.partial(print, 2.0),
        loader_of_module=torch.nn.Linear(2, 2).forward,
        shards=["q", 0, None],
    )
    kinds = ("distributed", "async collective")
    for make in (lambda _, run: run(named, None), *(TENSORS[kind] for kind in kinds)):
        make(stored, lambda tensor, _: found.append(attest({"w": tensor}, tmp_path / "m.tensors")))
    found.append(attest({"w": Loaded(stored)}, tmp_path / "m.tensors"))
    assert [each.equal for each in found] == [True] * 4


found: list[Any] = []


class Server(torch.nn.Module):
    """A model that takes parts of tensors, several as one, other types, and fills what is left."""

    def __init__(self) -> None:
        super().__init__()

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)

        self.fused = empty(2 * ROWS, COLUMNS)
        self.rows = empty(ROWS // 2, COLUMNS)
        self.columns = empty(ROWS, COLUMNS // 2)
        self.cast = empty(ROWS, COLUMNS, dtype=torch.bfloat16)
        self.turned = empty(COLUMNS, ROWS)
        self.padded = empty(PADDED)
        self.one = empty(1)

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            if name == "a":
                self.fused.data[:ROWS].copy_(weight)
                self.columns.data.copy_(weight.chunk(2, 1)[1])
                self.turned.data.copy_(weight.t())
            elif name == "b":
                self.fused.data[ROWS:].copy_(weight)
                self.rows.data.copy_(weight.narrow(0, 333, ROWS // 2))
                self.cast.data.copy_(weight)
            elif name == "c":
                self.padded.data[:COLUMNS].copy_(weight)
                self.padded.data[COLUMNS:].fill_(0)
                self.one.data.copy_(weight[7:8])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("model") / "m.tensors"
    tensors = {name: torch.randn(ROWS, COLUMNS) for name in "ab"} | {"c": torch.randn(COLUMNS)}
    tensorizer_ops.save(path, tensors)
    return path


@pytest.fixture
def server(file: Path) -> Server:
    server = Server()
    server.load_weights(iter(tensorizer_ops.load(file).items()))
    return server


def test_a_server_is_what_it_would_load(file: Path, server: Server) -> None:
    found = attest(server, file, load_weights=server.load_weights)
    assert found.equal and found.compared == list(server.state_dict())


def test_files_without_hashes_of_chunks(file: Path, server: Server, tmp_path: Path) -> None:
    tensors = tensorizer_ops.load(file)
    tensorizer_ops.save(tmp_path / "m.tensors", tensors, hashes="sha256")
    assert attest(server, tmp_path / "m.tensors", load_weights=server.load_weights).equal
    plain = tmp_path / "m.safetensors"
    safetensors.torch.save_file(tensors, plain)
    with pytest.raises(ValueError, match="there is nothing to verify"):
        attest(server, plain, load_weights=server.load_weights)
    signer = Signer(tmp_path / "keys")
    tensorizer_ops.sign(plain, key=signer.private)
    signed = {"load_weights": server.load_weights, "options": signer.options}
    assert attest(server, plain, **signed).equal
    flip(server.columns, 4 * 5000)
    assert attest(server, plain, **signed).different == {
        "columns": "element [10, 0] is not that of 'a' in the file"
    }


def test_no_tensors(file: Path) -> None:
    assert not attest({}, file).equal


def test_every_flipped_bit_of_a_server_is_named(file: Path, server: Server) -> None:
    chosen = random.Random(1)
    for _ in range(20):
        name, parameter = chosen.choice(list(server.named_parameters()))
        place = chosen.randrange(parameter.numel())
        flip(parameter, place * parameter.itemsize + chosen.randrange(parameter.itemsize))
        before = {name: tensor.clone() for name, tensor in server.state_dict().items()}
        found = attest(server, file, load_weights=server.load_weights)
        index = [int(i) for i in torch.unravel_index(torch.tensor(place), parameter.shape)]
        assert list(found.different) == [name] and not found.not_compared
        assert found.different[name].startswith(f"element {index} is not that of ")
        assert all(same(tensor, before[name]) for name, tensor in server.state_dict().items())
        server.load_weights(iter(tensorizer_ops.load(file).items()))


def test_what_a_loader_does_otherwise_is_not_compared(file: Path, server: Server) -> None:
    class Adding(Server):
        def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
            for name, weight in weights:
                if name == "a":
                    self.fused.data[:ROWS].copy_(weight)
                    self.columns.data = weight.chunk(2, 1)[1].clone()
                    self.rows.data.add_(1)

    adding = Adding()
    adding.load_state_dict(server.state_dict())
    before = {name: tensor.clone() for name, tensor in adding.state_dict().items()}
    found = attest(adding, file, load_weights=adding.load_weights)
    assert not found.equal and not found.compared and not found.different
    assert found.not_compared == {
        "rows": "the loader changes it by aten.add_.Tensor",
        "columns": "the loader gives it other memory",
        "fused": f"{ROWS * COLUMNS} of its elements are from no file",
        "cast": f"{ROWS * COLUMNS} of its elements are from no file",
        "turned": f"{ROWS * COLUMNS} of its elements are from no file",
        "padded": f"{PADDED} of its elements are from no file",
        "one": "1 of its elements are from no file",
    }
    assert all(same(tensor, before[name]) for name, tensor in adding.state_dict().items())


@pytest.mark.filterwarnings("ignore:The PyTorch API of", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize(
    ("made_of", "why"),
    [
        (lambda ones: torch.nested.nested_tensor([ones, ones[:3]]), "it is nested"),
        (torch.Tensor.to_sparse, "its layout is Sparse"),
        (lambda ones: torch.quantize_per_tensor(ones, 1, 0, torch.quint8), "it is quantized"),
        (lambda ones: TwoTensor(ones, ones), "it is a tensor subclass without memory"),
        (lambda ones: masked_tensor(ones, ones > 0), "it is a tensor subclass without memory"),
    ],
)
def test_tensors_to_which_writes_cannot_be_seen(
    tmp_path: Path, made_of: Callable[[torch.Tensor], torch.Tensor], why: str, persistent: bool
) -> None:
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": torch.zeros(8)})
    model = torch.nn.Module()
    model.register_buffer("a", made_of(torch.ones(8)), persistent=persistent)
    with pytest.raises(ValueError, match=f"'a' cannot be compared by load_weights=: {why}"):
        attest(model, tmp_path / "m.tensors", load_weights=lambda weights: pytest.fail("runs"))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(8), torch.ones(3)])
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": torch.ones(8)})
    with pytest.raises(ValueError, match="'a' cannot be compared: it is nested"):
        attest({"a": nested}, tmp_path / "m.tensors")


def test_scripts(tmp_path: Path) -> None:
    script = torch.jit.script(torch.nn.Linear(8, 8))
    tensorizer_ops.save(tmp_path / "m.tensors", script.state_dict())
    assert attest(script, tmp_path / "m.tensors").equal
    with pytest.raises(ValueError, match="has a ScriptModule"):
        attest(torch.nn.Sequential(script), tmp_path / "m.tensors", load_weights=list)


def test_a_state_dict_with_other_tensors(tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 8, bias=False)
    tensorizer_ops.save(tmp_path / "m.tensors", {"weight": torch.zeros(8, 8)})
    model.register_state_dict_post_hook(
        lambda module, state, prefix, metadata: state.update(weight=torch.zeros(8, 8))
    )
    with pytest.raises(ValueError, match="has another tensor 'weight' than the module"):
        attest(model, tmp_path / "m.tensors")


class Merged(torch.nn.Linear):
    def __getattr__(self, name: str) -> Any:
        merged = vars(self).get("merged")
        return super().__getattr__(name) if merged is None else merged


def test_a_module_that_gets_another_tensor_than_it_registered(tmp_path: Path) -> None:
    model = Merged(8, 8)
    model.merged = torch.ones(8, 8)
    tensorizer_ops.save(tmp_path / "m.tensors", model.state_dict())
    with pytest.raises(ValueError, match="has another tensor 'weight' than the module"):
        attest(model, tmp_path / "m.tensors")


def test_a_state_dict_of_tensors_that_no_module_has(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8))
    stale = model[0].weight.detach().clone()
    tensorizer_ops.save(tmp_path / "m.tensors", {"w": stale, "b": model[0].bias, "part": stale[:2]})
    model[0].weight.data.mul_(2)

    def rename(module: Any, state: Any, prefix: str, metadata: Any) -> None:
        state.clear()
        state.update(w=stale, b=module[0].bias, part=module[0].weight[:2])

    model.register_state_dict_post_hook(rename)
    found = attest(model, tmp_path / "m.tensors")
    why = "the state_dict() of the module makes it, and no module has this tensor"
    part = "the state_dict() of the module has only a part of '0.weight'"
    assert found.not_compared == {"w": why, "part": part}
    assert found.compared == ["b"] and not found.different


EXTRA = torch.ones(2)


class Shows(torch.nn.Module):
    """Has one parameter, and other tensors in its ``state_dict()``."""

    def __init__(self, own: torch.Tensor, show: Any) -> None:
        super().__init__()
        self.own, self._show = torch.nn.Parameter(own, requires_grad=False), show

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination.update(self._show(self.own))


@pytest.mark.parametrize("by_loader", [False, True])
@pytest.mark.parametrize(
    ("show", "why"),
    [
        (lambda own: {"own": own.data}, "it is Scaled, "),
        (lambda own: {"w": own.data}, "it is Scaled, "),
        (lambda own: {"w": own.data[:2], "v": own.data[2:]}, "it is Scaled, "),
        (lambda own: {"w": own.data[:2]}, "has only a part of 'own'"),
        (lambda own: {"w": own.data[:3], "v": own.data[:2]}, "has only a part of 'own'"),
        (lambda own: {"w": own.new_empty(0).set_(own.untyped_storage())}, "no module has this"),
        (lambda own: {"x_extra_state": own.detach().clone()}, "no module has this tensor"),
        (lambda own: {"w": own.data[:2], "v": own.data[2:]}, None),
        (lambda own: {"w": own.data.view(2, 8)}, None),
        (lambda own: {"w": own, "v": own.data, "_extra_state": EXTRA}, None),
    ],
)
def test_a_state_dict_of_other_views(tmp_path: Path, show: Any, why: Any, by_loader: bool) -> None:
    memory = torch.randn(8, 4)
    model = Shows(memory[:4], show)
    if why and why.startswith("it is Scaled"):
        model.own = Scaled(model.own.data, requires_grad=False)
    state = {name: tensor.clone().detach() for name, tensor in model.state_dict().items()}
    tensorizer_ops.save(tmp_path / "m.tensors", state)
    targets = model.state_dict(keep_vars=True)
    given: Any = {}
    if by_loader:
        given["load_weights"] = lambda weights: [
            targets[name].copy_(weight) for name, weight in weights
        ]
    found = attest(model, tmp_path / "m.tensors", **given)
    if why is None:
        assert found.equal, found
    else:
        is_cut = any(each.numel() < model.own.numel() for each in state.values())
        own = {"own"} if by_loader and is_cut else set()  # which the loader writes in part
        assert found.not_compared.keys() == state.keys() | own and not found.equal
        assert state.keys().isdisjoint(found.compared)
        assert any(why in text for text in found.not_compared.values()), found


def test_a_weight_with_a_scale_that_is_tied(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(8, 8), "b": torch.nn.Linear(8, 8)})
    model.b.bias, model.b.weight = model.a.bias, Scaled(model.a.weight.data)
    tensorizer_ops.save(tmp_path / "m.tensors", model.a.state_dict(prefix="a."))
    found = attest(model, tmp_path / "m.tensors")
    assert found.not_compared.keys() == {"b.weight"} and not found.equal
    assert found.not_compared["b.weight"].startswith("it is Scaled, ")


@pytest.mark.parametrize("by_loader", [False, True])
@pytest.mark.parametrize("of_class", [False, True])
def test_tensors_that_are_plain_attributes(tmp_path: Path, of_class: bool, by_loader: bool) -> None:
    class Linear(torch.nn.Linear):
        pass

    model = torch.nn.Sequential(Linear(8, 8))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensorizer_ops.save(tmp_path / "m.tensors", state)
    own = model[0].weight.detach()
    del model[0].weight
    (Linear if of_class else model[0]).weight = own
    given: Any = {}
    if by_loader:
        given["load_weights"] = lambda weights: [
            getattr(model[0], name[2:]).data.copy_(weight) for name, weight in weights
        ]
    found = attest(model, tmp_path / "m.tensors", **given)
    assert found.equal and set(found.compared) == state.keys() and not found.missing
    own[3, 4] += 1
    found = attest(model, tmp_path / "m.tensors", **given)
    assert list(found.different) == ["0.weight"] and not found.equal
    model[0].other = torch.zeros(3)  # which is in no file
    own[3, 4] = state["0.weight"][3, 4]
    assert attest(model, tmp_path / "m.tensors", **given).equal


@pytest.mark.parametrize("of_class", [False, True])
def test_what_stands_before_a_parameter(tmp_path: Path, of_class: bool) -> None:
    class Linear(torch.nn.Linear):
        pass

    model = torch.nn.Sequential(Linear(8, 8))
    tensorizer_ops.save(tmp_path / "m.tensors", model.state_dict())
    if of_class:
        Linear.weight = torch.zeros(8, 8)
    else:
        vars(model[0])["weight"] = torch.zeros(8, 8)
    with pytest.raises(ValueError, match=r"has another tensor '0\.weight' than the module"):
        attest(model, tmp_path / "m.tensors")


@pytest.mark.parametrize("is_inner", [False, True])
def test_two_tensors_of_one_name(tmp_path: Path, is_inner: bool) -> None:
    model = torch.nn.Module()
    model.a = torch.nn.Module()
    model.a.w = torch.full((3,), 1.0 + is_inner)
    setattr(model, "a.w", torch.full((3,), 2.0 - is_inner))
    tensorizer_ops.save(tmp_path / "m.tensors", {"a.w": torch.ones(3)})
    with pytest.raises(ValueError, match=r"has another tensor 'a\.w' than the module"):
        attest(model, tmp_path / "m.tensors")


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_parameters_that_a_module_has_in_a_list(tmp_path: Path, kind: Any) -> None:
    model = kind(3, 4)
    model.first = model.weight_ih_l0.data
    before, flat, first = list(model._flat_weights), model._flat_weights, model.first
    tensorizer_ops.save(tmp_path / "m.tensors", model.state_dict())

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            setattr(model, name, torch.nn.Parameter(weight * 9))
        model.first, model.scale = torch.zeros(1), 2.0
        vars(model)["weight_hh_l0"] = torch.zeros(1)
        if kind is torch.nn.GRU:
            model._flat_weights = []

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    assert len(found.not_compared) == 5 and not found.compared  # with the attribute
    assert model._flat_weights is flat and model.first is first
    assert model.weight_hh_l0 is before[1] and not hasattr(model, "scale")
    assert all(one is other for one, other in zip(flat, before, strict=True))


def test_a_loader_that_changes_what_it_gets(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.randn(2000, 2000) for i in range(3)}
    tensorizer_ops.save(tmp_path / "m.tensors", tensors)
    # Not contiguous, because to compare these takes longer.
    model = torch.nn.ParameterDict({n: each.t().clone().t() for n, each in tensors.items()})

    def load(weights: Iterator[tuple[str, torch.Tensor]], read_first: bool) -> None:
        for name, weight in weights:
            if read_first:
                assert weight.sum() != 0
            model[name].data.copy_(weight)
            weight.zero_()

    for read_first in (False, True):
        found = attest(
            model,
            tmp_path / "m.tensors",
            load_weights=functools.partial(load, read_first=read_first),
        )
        assert sorted(found.compared) == sorted(tensors)


def test_a_damaged_file(file: Path, server: Server, tmp_path: Path) -> None:
    damaged = tmp_path / "m.tensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(errors.HashMismatch, match=r"m\.tensors"):
        attest(server, damaged, load_weights=server.load_weights)


def test_without_a_module(file: Path, server: Server) -> None:
    with pytest.raises(ValueError, match="must be a module if load_weights= is given"):
        attest(dict(server.state_dict()), file, load_weights=server.load_weights)


def test_encrypted_files(tmp_path: Path) -> None:
    options = {"key": "named:attest"}
    tensorizer_ops.keys.add("attest", key=bytes(32))
    tensors = {"a": torch.randn(ROWS, COLUMNS), "b": torch.arange(5)}
    tensorizer_ops.save(tmp_path / "m.tensors", tensors, options=options)
    assert attest(tensors, tmp_path / "m.tensors", options=options).equal
    flip(tensors["a"], 4 * 5000)
    found = attest(tensors, tmp_path / "m.tensors", options=options)
    assert found.different == {"a": "element [5, 0] is not that of the file"}
    tensorizer_ops.keys.remove("attest")
