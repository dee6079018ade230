"""`attest`: what a program has in memory, beside a file."""

from __future__ import annotations

import fractions
import functools
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy
import pytest
import safetensors.torch
import torch
from torch.masked import masked_tensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import tensorizer_ops
from local_servers.web import Web
from support.odd_tensors import TENSORS, Named, Wrapper
from support.samples import same, zoo
from support.signer import Signer
from tensorizer_ops import Reader, attest, errors
from tensorizer_ops._front.weight import Stored, Weight, stored_in

T = TypeVar("T")
ROWS, COLUMNS, PADDED = 700, 1000, 1024  # a matrix has 2.7 chunks


def flip(tensor: torch.Tensor, place: int) -> None:
    """Change one bit."""
    tensor.data.view(-1).view(torch.uint8)[place] ^= 4


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


class Halved(torch.Tensor):
    """Has memory of its own, and is read and written as the half of what is there."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def half(tensor: torch.Tensor) -> torch.Tensor:
            return plain(tensor) * 0.5 if isinstance(tensor, cls) else tensor

        if func is torch.ops.aten.copy_.default and isinstance(args[0], cls):
            return plain(args[0]).copy_(args[1] * 0.5)
        return func(*map(half, args), **(kwargs or {}))


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0).set_(tensor.untyped_storage(), 0, tensor.shape, tensor.stride())


def halved(tensor: torch.Tensor) -> torch.Tensor:
    return torch.Tensor._make_subclass(Halved, tensor)


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


def with_(tensor: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        setattr(tensor, name, value)
    return tensor


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


def of_file(weights: Iterator[tuple[str, torch.Tensor]], name: str = "a") -> torch.Tensor:
    return dict(weights)[name]


def overlapping(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    model.weight.data[:4].copy_(weight[:4])
    model.weight.data[1:5].copy_(weight[1:5])


def twice(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    model.weight.data[:4].copy_(weight[:4])
    model.weight.data[:4].view(-1).copy_(weight[:4].reshape(-1))


def expanded(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    model.weight.data[:1].expand(8, 8).copy_(of_file(weights)[:1].expand(8, 8))


def of_bytes(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = (of_file(weights) + 0).view(torch.uint8)
    model.weight.data.view(torch.uint8)[:2].copy_(weight[:2])


def kept(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    whole = model.weight.data.clone()
    whole[:4] = of_file(weights)[:4]
    model.weight.data.copy_(whole)


def kept_by_add(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    sum_ = of_file(weights) * 0
    sum_ += model.weight.data
    model.weight.data.copy_(sum_)


def kept_in_weight(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    weight[4:].copy_(model.weight.data[4:])
    model.weight.data.copy_(weight)


def kept_in_view(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    weight.view(-1)[32:] = model.weight.data.view(-1)[32:]
    model.weight.data.copy_(weight[:])


def turned(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    model.weight.data = model.weight.data.t()
    model.weight.data.copy_(of_file(weights))


def negated(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    model.weight.data.copy_(of_file(weights))
    model.weight.data = torch._neg_view(model.weight.data)


def replaced(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    model.weight.data.copy_(of_file(weights))
    model.weight = torch.nn.Parameter(torch.zeros(8, 8))


def by_alias(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    torch.from_numpy(model.weight.detach().numpy()[4:]).copy_(weight[4:])
    model.weight.data[:4].copy_(weight[:4])


def kept_under_overlap(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    whole = model.weight.data.clone()
    whole.as_strided((8, 8), (1, 1)).zero_()
    whole[:2] = of_file(weights)[:2]
    model.weight.data.copy_(whole)


def kept_in_sparse(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    model.weight.data.copy_(model.weight.data.to_sparse().to_dense())


def kept_in_nested(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    nested = torch.nested.nested_tensor([model.weight.data])
    model.weight.data.copy_(nested.to_padded_tensor(0.0)[0])


def kept_in_buffer(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    model.weight.data.copy_(model.get_buffer("stage"))


@torch.library.custom_op("attest_test::copy_like", mutates_args=())
def copy_like(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()


def kept_by_custom_op(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    model.weight.data.copy_(copy_like(model.weight.data))


def kept_in_attribute(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    model.weight.data.copy_(model.backup)


def kept_in_wrapper(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    model.weight.data.copy_((TwoTensor(model.weight.data, model.weight.data) + 0).a)


def kept_in_copied_wrapper(
    model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]
) -> None:
    of_file(weights)
    made = TwoTensor(torch.zeros(8, 8), torch.zeros(8, 8))
    made.copy_(TwoTensor(model.weight.data, model.weight.data))
    model.weight.data.copy_(made.b)


def kept_under_mask(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    mask = torch.ones(8, 8, dtype=torch.bool)
    model.weight.data.copy_((masked_tensor(model.weight.data, mask) + 0).get_data())


def kept_in_array(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    model.weight.data.copy_(torch.from_numpy(model.weight.detach().numpy().copy()))


def kept_in_storage(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    storage = model.weight.data.untyped_storage().clone()
    model.weight.data.copy_(torch.empty(0).set_(storage, 0, (8, 8)))


def kept_beside_empty_part(
    model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]
) -> None:
    of_file(weights)
    pieces = [piece.unsqueeze(0) for piece in model.weight.data.split([0, 8])]
    model.weight.data.copy_(pieces[1][0].clone())


def kept_behind_empty_part(
    model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]
) -> None:
    of_file(weights)
    model.backup[:0].zero_()
    torch.add(model.backup[:0], 1, out=model.backup[:0])
    model.weight.data.copy_(model.backup)


def kept_in_file(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    with tempfile.TemporaryDirectory() as folder:
        tensorizer_ops.save(f"{folder}/other.tensors", {"a": model.weight.data})
        model.weight.data.copy_(tensorizer_ops.load(f"{folder}/other.tensors")["a"])


@torch.library.custom_op("attest_test::backup", mutates_args=())
def backup() -> torch.Tensor:
    return BACKUP.clone()


BACKUP = torch.empty(8, 8)


def kept_by_op(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    BACKUP.copy_(model.weight.data)
    model.weight.data.copy_(backup())


def scaled(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    model.weight.data.copy_(weight + model.backup - weight)


def foreach(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    torch._foreach_copy_([model.weight.data], [of_file(weights)])


class Other(Wrapper):
    """Passes another tensor on than the one in it, which it does not tell."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*(each.other if isinstance(each, cls) else each for each in args))


def kept_in_subclass(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    model.weight.data.copy_(with_(Other(of_file(weights) + 0), other=model.backup))


def kept_beside_memory(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    BACKUP.copy_(of_file(weights))
    model.weight.data.copy_(halved(BACKUP))


def kept_by_map(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    stage = of_file(weights) + 0
    stage.map_(model.weight.data, lambda one, other: other)
    model.weight.data.copy_(stage)


def kept_by_map2(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    weight.map2_(model.weight.data, model.backup, lambda one, other, _: other)
    model.weight.data.copy_(weight)


def by_map(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    model.weight.data.map_(of_file(weights).clone(), lambda one, other: other)


def kept_in_uninitialized(
    model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]
) -> None:
    stage = torch.empty(8, 8)
    stage[:7].copy_(of_file(weights)[:7])
    with tempfile.TemporaryDirectory() as folder:
        tensorizer_ops.save(f"{folder}/other.tensors", {"a": model.weight.data[7:]})
        tensorizer_ops.load_into({"a": stage[7:]}, f"{folder}/other.tensors")
    model.weight.data.copy_(stage)


def kept_in_resized(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    stage = torch.zeros(0).resize_(8, 8)
    stage.numpy()[:] = model.weight.detach().numpy()
    model.weight.data.copy_(stage)


@torch.library.custom_op("attest_test::clear_both", mutates_args=["one"])
def clear_both(one: torch.Tensor, other: torch.Tensor) -> None:
    one.zero_()
    other.zero_()  # which it does not declare


def by_custom_op(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    clear_both(model.weight.data[:1], model.weight.data[1:])


def kept_under_expanded(
    model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]
) -> None:
    whole = model.weight.data.clone()
    whole[:1].expand(8, 8).zero_()  # replaces no other row
    whole[:1] = of_file(weights)[:1]
    model.weight.data.copy_(whole)


def kept_in_statistics(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    norm = torch.nn.BatchNorm1d(64, momentum=1.0)
    norm(model.weight.data.view(1, 64, 1).expand(1, 64, 2).contiguous())
    model.weight.data.copy_(norm.get_buffer("running_mean").view(8, 8))


def as_statistics(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    given = of_file(weights).view(1, 64, 1).expand(1, 64, 2).contiguous()
    mean, variance = model.weight.data.view(64), torch.ones(64)
    torch.nn.functional.batch_norm(given, mean, variance, training=True, momentum=1.0)


def kept_in_loaded(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    stage = torch.zeros(8, 8)
    with tempfile.TemporaryDirectory() as folder:
        tensorizer_ops.save(f"{folder}/other.tensors", {"a": model.weight.data})
        torch.ops.tensorizer.load_into(f"{folder}/other.tensors", ["a"], [stage])
    model.weight.data.copy_(stage)


def of_another_file(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    with tempfile.TemporaryDirectory() as folder:
        tensorizer_ops.save(f"{folder}/other.tensors", {"a": model.weight.data})
        with Reader(f"{folder}/other.tensors") as reader:
            (stored,) = stored_in(reader, ["a"], Stored)
            model.weight.data.copy_(Weight(stored))


def to_the_right_place(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight, own = of_file(weights), model.weight.data
    assert torch.cat([weight[:4], weight[4:]], out=own) is own
    assert torch.stack(list(weight.unbind()), out=own) is own
    places = torch.zeros(8, 8, dtype=torch.int64)
    found = torch.sort(weight, out=(own, places))
    assert found.values is own and found.indices is places and places.any()


@pytest.mark.parametrize(
    "load",
    [
        overlapping,
        kept_in_subclass,
        kept_beside_memory,
        kept_by_map,
        kept_by_map2,
        by_map,
        kept_in_uninitialized,
        kept_in_resized,
        by_custom_op,
        kept_under_expanded,
        kept_in_statistics,
        as_statistics,
        kept_in_loaded,
        of_another_file,
        to_the_right_place,
        twice,
        expanded,
        of_bytes,
        kept,
        kept_by_add,
        kept_in_weight,
        kept_in_view,
        turned,
        negated,
        replaced,
        by_alias,
        kept_under_overlap,
        kept_in_sparse,
        kept_in_nested,
        kept_by_custom_op,
        foreach,
        kept_in_buffer,
        kept_in_attribute,
        kept_in_wrapper,
        kept_in_copied_wrapper,
        kept_under_mask,
        kept_in_array,
        kept_in_storage,
        kept_beside_empty_part,
        kept_behind_empty_part,
        kept_in_file,
        kept_by_op,
        scaled,
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of")
def test_loaders_that_hide_what_differs(tmp_path: Path, load: Any) -> None:
    """Every element is compared, with one of the file, and the model stays as it is."""
    stored = torch.randn(8, 8)
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": stored})
    model = torch.nn.Linear(8, 8, bias=False)
    weight = model.weight
    with torch.no_grad():
        weight.copy_(stored.t() if load is turned else stored)
        if load is not turned:
            weight[7, 0] += 1
    model.register_buffer("stage", weight.detach().clone(), persistent=False)
    model.backup = weight.detach().clone()
    before, data = weight.detach().clone(), weight.data_ptr()
    found = attest(model, tmp_path / "m.tensors", load_weights=lambda weights: load(model, weights))
    assert not found.equal and not found.compared
    assert model.weight is weight and weight.data_ptr() == data
    assert weight.is_contiguous() and not weight.is_neg() and same(weight.data, before)


def in_shared_memory(model: torch.nn.Linear, weight: torch.Tensor) -> None:
    model.weight.data.copy_(weight)
    model.share_memory()


def without_memory(model: torch.nn.Linear, weight: torch.Tensor) -> None:
    model.weight.data.copy_(weight)
    model.weight.untyped_storage().resize_(0)


@pytest.mark.parametrize("move", [in_shared_memory, without_memory])
def test_a_loader_that_moves_the_memory_of_a_parameter(tmp_path: Path, move: Any) -> None:
    stored = torch.randn(8, 8)
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": stored})
    model = torch.nn.Linear(8, 8, bias=False)
    model.weight.data.copy_(stored)
    found = attest(
        model, tmp_path / "m.tensors", load_weights=lambda weights: move(model, of_file(weights))
    )
    assert found.not_compared == {"weight": "the loader gives it other memory"}
    assert not found.compared and not found.different


@pytest.mark.parametrize("rows", [8, 100_000])
def test_weights_of_an_earlier_file(tmp_path: Path, rows: int) -> None:
    model = torch.nn.Linear(8, rows, bias=False)
    tensorizer_ops.save(tmp_path / "1.tensors", {"a": model.weight})
    tensorizer_ops.save(tmp_path / "2.tensors", {"a": model.weight * 2})
    cache: dict[str, torch.Tensor] = {}

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            model.weight.data.copy_(cache.setdefault(name, weight))

    assert attest(model, tmp_path / "1.tensors", load_weights=load).equal
    found = attest(model, tmp_path / "2.tensors", load_weights=load)
    text = "what the loader copies to it is not made of the file alone"
    assert found.not_compared == {"weight": text} and not found.compared


def test_a_write_to_no_element(tmp_path: Path) -> None:
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": torch.zeros(8)})
    model = torch.nn.ParameterDict({"a": torch.zeros(8)})

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        weight, own = of_file(weights), model["a"].data
        for part in (slice(0, 3), slice(3, 3), slice(4, 8)):
            own[part].copy_(weight[part])

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    assert found.not_compared == {"a": "1 of its elements are from no file"}


def zeroed_first(weight: torch.Tensor, target: torch.Tensor) -> None:
    target.zero_()
    target[:8].copy_(weight)


def filled_by_bytes(weight: torch.Tensor, target: torch.Tensor) -> None:
    target.fill_(torch.tensor(7))
    target[8:].view(torch.uint8).zero_()
    target[:8].t().copy_(weight.t())


def several_times(weight: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(torch.cat([weight * 2, weight[:2]]))
    target[:, 3:].copy_(torch.cat([weight, weight[:2]])[:, 3:])
    target.zero_()
    target[:8].copy_(-weight)
    target[:8, ::2].copy_(weight[:, ::2])
    target[:8, 1::2].copy_(weight[:, 1::2] + 0)


def by_large_parts(weight: torch.Tensor, target: torch.Tensor) -> None:
    target[2:10].copy_(weight)
    target[8:].zero_()
    target[:8].copy_(weight)


def in_two_steps(weight: torch.Tensor, target: torch.Tensor) -> None:
    target.zero_()
    target[:8, :4].copy_(weight[:, :4].flip(0))
    target[:8].copy_(weight)


@pytest.mark.parametrize(
    "load", [zeroed_first, filled_by_bytes, several_times, by_large_parts, in_two_steps]
)
@pytest.mark.parametrize("columns", [8, 40_000])  # the larger ones are not read before
def test_only_what_is_written_last_counts(tmp_path: Path, load: Any, columns: int) -> None:
    stored = torch.randn(8, columns)
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": stored})
    model = torch.nn.Linear(columns, 10, bias=False)

    def load_weights(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        load(of_file(weights), model.weight.data)

    for place in (None, [5, 3], [5, 4], [9, 3]):
        with torch.no_grad():
            model.weight.copy_(torch.cat([stored, torch.zeros(2, columns)]))
        if place:
            flip(model.weight[tuple(place)], 0)
        before = model.weight.detach().clone()
        found = attest(model, tmp_path / "m.tensors", load_weights=load_weights)
        assert found.equal == (place is None) and not found.not_compared
        for text in found.different.values():
            assert text.startswith(f"element {place} is not that of ") and ";" not in text
        assert same(model.weight.data, before)


def at_once(weights: dict[str, torch.Tensor], target: torch.Tensor) -> None:
    for weight in weights.values():
        target.copy_(weight)


def computed(weights: dict[str, torch.Tensor], target: torch.Tensor) -> None:
    made = [weight.t().contiguous() for weight in weights.values()]
    for each in made:
        target.copy_(each.t())


def staged_in_turn(weights: dict[str, torch.Tensor], target: torch.Tensor) -> None:
    stage = torch.empty(8, 8)
    for weight in weights.values():
        stage.copy_(weight)
        target.copy_(stage)


def behind_zeros(weights: dict[str, torch.Tensor], target: torch.Tensor) -> None:
    for weight in weights.values():
        target.zero_()
        target[:4].copy_(weight[:4])
        target[4:].copy_(weight[4:])


@pytest.mark.parametrize("load", [at_once, computed, staged_in_turn, behind_zeros])
def test_two_tensors_of_the_file_in_one_place(tmp_path: Path, load: Any) -> None:
    """One of them is lost, which nobody may miss only if they are equal."""
    stored = {"embed": torch.randn(8, 8), "head": torch.randn(8, 8)}
    model = torch.nn.ParameterDict({"embed": stored["head"].clone()})
    model["head"] = model["embed"]

    def load_weights(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        load(dict(weights), model["head"].data)

    stored["embed"] = stored["head"].clone()
    tensorizer_ops.save(tmp_path / "m.tensors", stored)
    assert attest(model, tmp_path / "m.tensors", load_weights=load_weights).equal
    flip(stored["embed"], 4 * 9)
    tensorizer_ops.save(tmp_path / "m.tensors", stored)
    found = attest(model, tmp_path / "m.tensors", load_weights=load_weights)
    assert list(found.different) == ["embed"]
    assert found.different["embed"].startswith("element [1, 1] is not that of ")


def test_what_a_loader_reads_before_it_is_written_again(tmp_path: Path) -> None:
    stored = torch.randn(8, 8)
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": stored})
    model = torch.nn.ParameterDict({"one": stored.clone(), "two": stored.clone()})

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        model["one"].data.zero_()
        model["two"].data.copy_(model["one"].data)
        model["one"].data.copy_(of_file(weights))

    # The loader gives zeros to the second one.
    assert list(attest(model, tmp_path / "m.tensors", load_weights=load).different) == ["one"]


def test_a_write_that_a_subclass_changes(tmp_path: Path) -> None:
    stored = torch.randn(8, 8)
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": stored})
    model = torch.nn.ParameterDict({"a": stored.clone(), "b": stored.clone(), "c": stored / 2})

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        halved(model["a"].data).copy_(weight := of_file(weights))
        model["b"].data.copy_(weight)
        model["c"].data.copy_(halved(model["b"].data))

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    assert found.compared == ["b"] and found.not_compared == {
        "a": "the loader changes it by aten.copy_.default",
        "c": "what the loader copies to it is not made of the file alone",
    }
    assert torch.equal(model["a"].data, stored)


def through_wrapper(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    model.weight.data.copy_((TwoTensor(weight, weight) + 0).b)


def to_wrapper(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    TwoTensor(model.weight.data, model.weight.data).copy_(weight)


def with_constants(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    order = torch.cat([torch.arange(4), torch.tensor([4, 5, 6, 7])])
    model.weight.data.copy_(weight[order] * torch.full_like(model.weight, 2) / torch.tensor(2))


def staged(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    model.stage.copy_(weight)  # replaces all that was there
    model.weight.data.copy_(model.stage)


def looked_at(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    assert weight.numpy().any() and weight.tolist()
    model.weight.data[:4] = weight[:4]
    model.weight.data[4:] = weight[4:].clone()


def staged_in_parts(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    stages = [torch.empty(8, 8), weight.new_empty(8, 8), torch.empty_like(model.weight.data)]
    for stage in (*stages, model.stage, torch.nn.Linear(8, 8).weight.data):
        stage.narrow(0, 0, 4).copy_(weight[:4])
        model.weight.data[:4].copy_(stage[:4])
        stage[4:, ::2] = weight[4:, ::2]
        stage[4:, 1::2].copy_(weight[4:, 1::2])
        model.weight.data.copy_(stage)


@torch.library.custom_op("attest_test::pack", mutates_args=["packed"])
def pack(weight: torch.Tensor, packed: torch.Tensor) -> None:
    packed.copy_(weight)


def packed_by_custom_op(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    packed = torch.empty_like(model.weight)
    pack(weight + 0, packed)
    model.weight.data.copy_(packed)


def into_outputs(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    stage = torch.empty(8, 8)
    torch.cat([torch.empty(0), weight[:4], weight[4:]], out=stage)
    model.weight.data[:4].copy_(torch.stack(list(stage.unbind()))[:4])
    torch.mul(weight, 1, out=stage[:])
    model.weight.data[4:].copy_(stage[4:])


@pytest.mark.parametrize(
    "load",
    [
        through_wrapper,
        to_wrapper,
        with_constants,
        staged,
        staged_in_parts,
        into_outputs,
        packed_by_custom_op,
        looked_at,
    ],
)
def test_what_is_made_of_the_file_alone(tmp_path: Path, load: Any) -> None:
    stored = torch.randn(8, 8)
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": stored})
    model = torch.nn.Linear(8, 8, bias=False)
    model.stage = stored.clone()  # as a load leaves it

    def load_weights(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        load(of_file(weights), model)

    for place in (None, 5):
        model.weight.data.copy_(stored)
        if place is not None:
            flip(model.weight, place * 4)
        before = model.weight.detach().clone()
        found = attest(model, tmp_path / "m.tensors", load_weights=load_weights)
        assert found.equal == (place is None) and not found.not_compared
        assert list(found.different) == ["weight"] * (place is not None)
        assert same(model.weight.data, before)


def test_many_operations_take_no_memory(tmp_path: Path) -> None:
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": torch.ones(8, 8)})
    model = torch.nn.Linear(8, 8, bias=False)
    torch.nn.init.ones_(model.weight)

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        weight = of_file(weights)
        for _ in range(3000):
            made = weight * 1
        model.weight.data.copy_(made)
        (watch,) = _get_current_dispatch_mode_stack()
        assert len(watch._origins._storages) < 1500

    assert attest(model, tmp_path / "m.tensors", load_weights=load).equal


def by_numpy(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    model.weight.detach().numpy()[:] = weight.numpy()
    model.weight.data.copy_(weight)


def by_thread(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    thread = threading.Thread(target=lambda: model.weight.data.copy_(weight))
    thread.start()
    thread.join()
    model.weight.data.copy_(weight)


@pytest.mark.parametrize("load", [by_numpy, by_thread])
def test_a_model_that_changes_meanwhile(tmp_path: Path, load: Any) -> None:
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": torch.randn(8, 8)})
    model = torch.nn.Linear(8, 8, bias=False)
    found = attest(model, tmp_path / "m.tensors", load_weights=lambda weights: load(model, weights))
    assert not found.compared and "it has changed meanwhile" in found.not_compared["weight"]


def test_loaders_that_copy_from_other_tensors_of_the_model(tmp_path: Path) -> None:
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": torch.randn(8, 8)})

    class Model(torch.nn.Module):
        def __init__(self, *names: str) -> None:
            super().__init__()
            for name in names:
                value = tensorizer_ops.load(tmp_path / "m.tensors")["a"].clone()
                self.register_parameter(name, torch.nn.Parameter(value))

        def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
            own = dict(self.named_parameters())
            own["one"].data.copy_(dict(weights)["a"])
            own["two"].data.copy_(own["one"].data)
            own["three"].data.copy_(own["four"].data)
            own["four"].data.copy_(own["three"].data)
            # What is made like a tensor has none of its elements.
            made = torch.empty_like(own["five"])
            made.copy_(own["one"].data)
            own["five"].data.copy_(own["one"].data)

    model = Model("one", "two", "three", "four", "five")
    found = attest(model, tmp_path / "m.tensors", load_weights=model.load_weights)
    assert found.compared == ["one", "two", "five"]
    assert list(found.not_compared) == ["three", "four"]
    flip(dict(model.named_parameters())["two"], 5)
    found = attest(model, tmp_path / "m.tensors", load_weights=model.load_weights)
    assert list(found.different) == ["two"]


def test_memory_beside_that_of_a_parameter(tmp_path: Path) -> None:
    tensorizer_ops.save(tmp_path / "m.tensors", {"one": torch.zeros(8)})
    memory = torch.cat([torch.zeros(8), torch.ones(8)])
    model = torch.nn.ParameterDict({"one": memory[:8], "two": memory.clone(), "part": memory[2:6]})

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        model["one"].data.copy_(of_file(weights, "one"))
        model["two"].data.copy_(memory)

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    assert found.compared == ["one", "part"] and list(found.not_compared) == ["two"]


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
        assert found.not_compared.keys() == state.keys() and not found.equal
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
