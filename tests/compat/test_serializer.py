"""TensorSerializer: each library reads what the other writes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest
import tensorizer
import torch

import tensorizer_ops
from support.modules import Model, tensors_of
from support.raw_parse import parse
from support.samples import DTYPES, NUMPY_NAMES, assert_same, random_bytes, same, sample, zoo
from tensorizer_ops import TensorSerializer, TensorType

NESTED: dict[str, Any] = {
    "model": {
        "layers": [
            {"w": sample(torch.float32, seed=1)},
            [sample(torch.bfloat16, seed=2), (sample(torch.int64, seed=3),)],
        ],
        "empty": {},
    },
    "head": sample(torch.float16, seed=4),
}


def classic(path: str, **options: Any) -> tensorizer.TensorDeserializer:
    return tensorizer.TensorDeserializer(path, device="cpu", verify_hash=True, **options)


def equal_trees(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return same(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal_trees(a[key], b[key]) for key in a)
    return len(a) == len(b) and all(map(equal_trees, a, b))


def entries(path: str) -> list[tuple[Any, ...]]:
    """Returns what a file stores about each tensor, except its position."""
    return [
        (entry.header_name, entry.kind, entry.module_index, entry.header_dtype, entry.shape)
        for entry in parse(Path(path).read_bytes()).entries
    ]


def classic_file(path: str, write: Any) -> str:
    serializer = tensorizer.TensorSerializer(path)
    write(serializer)
    serializer.close()
    return path


@pytest.mark.parametrize("non_persistent", [True, False])
def test_a_module_is_written_as_there(path: str, non_persistent: bool) -> None:
    model = Model()

    def write(serializer: Any) -> None:
        serializer.write_module(model, include_non_persistent_buffers=non_persistent)

    with TensorSerializer(path) as serializer:
        write(serializer)
    there = entries(classic_file(path + ".classic", write))
    if not non_persistent:
        # tensorizer loses the buffers of a root module.
        there.insert(2, (b".own", 1, 0, b"<f4", (2, 2)))
    assert entries(path) == there
    with classic(path) as loaded:
        other = Model(seed=1)
        loaded.load_into_module(other)
    expected = tensors_of(model)
    if not non_persistent:
        for name in ("blocks.0.scratch", "blocks.1.scratch"):
            expected[name] = tensors_of(Model())[name]
    found = tensors_of(other)
    assert_same({name: found[name] for name in expected}, expected)


def test_a_state_dict_both_ways(path: str) -> None:
    tensors = zoo()
    with TensorSerializer(path) as serializer:
        serializer.write_state_dict(tensors)
        assert serializer.total_tensor_bytes == sum(t.nbytes for t in tensors.values())
    with classic(path) as loaded:
        assert_same(loaded, tensors)
    other = classic_file(path + ".classic", lambda s: s.write_state_dict(tensors))
    assert entries(path) == entries(other)
    assert_same(tensorizer_ops.TensorDeserializer(other, "cpu", verify_hash=True), tensors)


def test_nested_structures_both_ways(path: str) -> None:
    with TensorSerializer(path) as serializer:
        serializer.write_state_dict(NESTED)
    there = classic_file(path + ".classic", lambda s: s.write_state_dict(NESTED))
    assert entries(path) == entries(there)
    with classic(path) as loaded:
        expected = loaded.tree()
    for file in (path, there):
        with tensorizer_ops.TensorDeserializer(file, "cpu") as ours:
            assert equal_trees(ours.tree(), expected)


def test_a_list_both_ways(path: str) -> None:
    tensors = [sample(torch.float32, seed=i) for i in range(12)]
    with TensorSerializer(path) as serializer:
        serializer.write_state_dict(tensors)
    with classic(path) as loaded, tensorizer_ops.TensorDeserializer(path, "cpu") as ours:
        assert list(loaded) == list(ours) == list(range(12))
        assert equal_trees(loaded.tree(), tensors)
        assert equal_trees(ours.tree(), tensors)


@pytest.mark.parametrize("name", NUMPY_NAMES[:-2])
def test_arrays_both_ways(path: str, name: str) -> None:
    array = sample(DTYPES[name], (6, 8)).numpy()
    frozen = array.copy()
    frozen.flags.writeable = False
    point = array[0, :1].reshape(())
    arrays = [array, array.T, array[::-1, ::2], frozen, array[:0], point, point[()]]

    def write(serializer: Any, kind: Any) -> None:
        for i, part in enumerate(arrays):
            serializer.write_tensor(i, f"{i}", kind, part)

    with TensorSerializer(path) as serializer, warnings.catch_warnings():
        warnings.simplefilter("error")
        write(serializer, TensorType.BUFFER)
    there = classic_file(path + ".classic", lambda s: write(s, tensorizer.TensorType.BUFFER))
    assert entries(path) == entries(there)
    with classic(path) as loaded:
        for i, part in enumerate(arrays):
            assert numpy.array_equal(loaded[f"{i}"].detach().numpy(), part, equal_nan=True)
    assert_same(tensorizer_ops.load(path), tensorizer_ops.load(there))


def test_what_is_no_tensor_is_refused(path: str) -> None:
    cycle: dict[str, Any] = {"x": torch.ones(1)}
    cycle["self"] = cycle
    with TensorSerializer(path) as serializer:
        for wrong in ({"a": "text"}, {"a": b"bytes"}, {1: torch.ones(1)}, {"a": 3}, {"a": None}):
            with pytest.raises(TypeError):
                serializer.write_state_dict(wrong)
        with pytest.raises(TypeError, match="list"):
            serializer.write_tensor(0, "x", TensorType.PARAM, [1.0])
        with pytest.raises(ValueError, match="itself"):
            serializer.write_state_dict(cycle)
        with pytest.raises(ValueError):
            serializer.write_tensor(0, "x", 7, torch.ones(1))
        with pytest.raises(ValueError, match="layout is Sparse"):
            serializer.write_state_dict({"s": torch.eye(2).to_sparse()})
        serializer.write_state_dict({"x": torch.ones(2)})
        with pytest.raises(ValueError, match="'x' was added before"):
            serializer.write_state_dict({"y": torch.ones(2), "x": torch.ones(2)})
    assert_same(tensorizer_ops.load(path), {"x": torch.ones(2)})


@pytest.mark.parametrize("wrong", [5, ("a", 0), b"a", None, "\udc80"])
def test_names_that_are_no_text_are_refused(path: str, wrong: Any) -> None:
    kinds = []
    for module in (tensorizer, tensorizer_ops):
        serializer = module.TensorSerializer(path)
        with pytest.raises((TypeError, UnicodeEncodeError)) as error:
            serializer.write_tensor(0, wrong, module.TensorType.PARAM, torch.ones(1))
        kinds.append(type(error.value))
        serializer.close()
    assert kinds[0] is kinds[1]
    with TensorSerializer(path) as ours, pytest.raises(TypeError, match="integer"):
        ours.write_tensor("0", "a", TensorType.PARAM, torch.ones(1))


def test_tensors_are_removed_when_they_are_written(path: str) -> None:
    model, there = Model(), Model()
    with TensorSerializer(path) as serializer:
        serializer.write_module(model, remove_tensors=True)
    classic_file(path + ".classic", lambda s: s.write_module(there, remove_tensors=True))
    assert not tensors_of(model)
    assert model._parameters == there._parameters
    assert model._buffers == there._buffers


def test_views_conjugates_and_meta_tensors(path: str) -> None:
    base = sample(torch.complex64, (4, 6))
    tensors = {
        "conj": base.conj(),
        "neg": base.conj().imag,
        "view": base.t()[1:, ::2],
        "expanded": torch.ones(1).expand(3, 4),
        "empty": torch.empty(0, 3, dtype=torch.bfloat16),
    }
    with TensorSerializer(path) as serializer:
        serializer.write_state_dict({**tensors, "meta": torch.empty(2, 3, device="meta")})
        plain = {name: tensor.resolve_conj().resolve_neg() for name, tensor in tensors.items()}
        assert serializer.total_tensor_bytes == sum(t.numel() * t.itemsize for t in plain.values())
    with classic(path) as loaded:
        assert_same(loaded, {**plain, "meta": torch.zeros(2, 3)})


class Logged(torch.Tensor):
    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensors_of_other_classes(path: str) -> None:
    tensors = {"a": sample(torch.float32), "b": sample(torch.bfloat16)}
    logged = {name: tensor.as_subclass(Logged) for name, tensor in tensors.items()}

    def write(serializer: Any) -> None:
        serializer.write_state_dict(logged)
        serializer.write_tensor(0, "c", TensorType.PARAM, logged["a"].t())

    with TensorSerializer(path) as serializer:
        write(serializer)
    assert entries(path) == entries(classic_file(path + ".classic", write))
    assert_same(tensorizer_ops.load(path), {**tensors, "c": tensors["a"].t()})
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with TensorSerializer(path) as serializer, pytest.raises(ValueError, match="it is nested"):
        serializer.write_state_dict({"x": jagged})


def test_modules_with_tensors_of_other_classes(path: str) -> None:
    model = torch.nn.Linear(2, 2)
    model.weight = torch.nn.Parameter(model.weight.detach().as_subclass(Logged))
    with TensorSerializer(path) as serializer:
        serializer.write_module(model)
    loaded = tensorizer_ops.TensorDeserializer(path, "cpu")
    loaded.load_into_module(model)
    assert loaded.verify_module(model)[0]
    weight = model.weight.clone()
    tensorizer_ops.load_into(model, path)
    assert isinstance(model.weight, Logged)
    assert same(model.weight, weight)


def test_what_is_not_initialized_is_not_written_as_empty(path: str) -> None:
    with (
        TensorSerializer(path) as serializer,
        pytest.raises(ValueError, match="weight' cannot be saved: it is not initialized"),
    ):
        serializer.write_module(torch.nn.LazyLinear(3))


def test_an_index_that_outgrows_its_room_moves_data_seldom(path: str) -> None:
    with open(path, "wb+", buffering=0) as file:
        serializer = TensorSerializer(file)
        serializer.write_state_dict({"large": random_bytes(1 << 20, 1)})
        # When the data moves, the offset of the first tensor changes.
        places = set()
        for i in range(1200):
            serializer.write_tensor(0, f"{i} {'x' * 200}", TensorType.PARAM, torch.ones(1))
            if i % 10 == 0:
                places.add(parse(Path(path).read_bytes()).entries[0].data_offset)
        assert len(places) <= 5, places
        serializer.close()
    assert len(tensorizer_ops.load(path, verify="all")) == 1201


def test_many_small_tensors_and_large_ones(path: str) -> None:
    tensors = {f"{i}": random_bytes(i % 50, i) for i in range(3000)}
    large = {f"large {i}": random_bytes(5 << 20, i) for i in range(3)}
    with TensorSerializer(path, limit_cpu_concurrency=2) as serializer:
        serializer.write_state_dict(tensors)
        # The index outgrows the room that the first call reserved.
        serializer.write_state_dict({f"{'long' * 500} {i}": random_bytes(1) for i in range(200)})
        serializer.write_state_dict(large)
    loaded = tensorizer_ops.load(path, verify="all")
    assert len(loaded) == 3203
    assert_same({name: loaded[name] for name in {**tensors, **large}}, {**tensors, **large})


@pytest.mark.parametrize("limit", [0, -1, "2", 1.5])
def test_a_wrong_limit(path: str, limit: Any) -> None:
    kinds = []
    for module in (tensorizer, tensorizer_ops):
        with pytest.raises((TypeError, ValueError)) as error:
            module.TensorSerializer(path, limit_cpu_concurrency=limit)
        kinds.append(ValueError if isinstance(error.value, ValueError) else TypeError)
    assert kinds[0] == kinds[1]
    with TensorSerializer(path) as serializer:
        assert serializer.cpu_limit == tensorizer_ops.serialization.cpu_count


def test_progress_is_told_and_may_end_it(path: str) -> None:
    told: list[tuple[int, int]] = []
    tensors = {"x": random_bytes(1000)}
    with TensorSerializer(path, progress=lambda *far: told.append(far)) as serializer:
        serializer.write_state_dict(tensors)
    assert told[-1] == (1000, 1000)
    tensorizer_ops.TensorDeserializer(path, "cpu", progress=lambda *far: told.append(far))
    assert told[-1] == (1000, 1000)


@pytest.mark.parametrize(
    ("array", "kind", "match"),
    [
        (numpy.zeros(3, dtype="i4,f4"), TypeError, "can't convert"),
        (numpy.zeros(3, dtype=">f4"), ValueError, "byte order"),
        (numpy.ma.masked_array([1.0, 2.0], mask=[0, 1]), ValueError, "masked: save its data"),
    ],
)
def test_arrays_that_no_tensor_holds(
    path: str, array: Any, kind: type[Exception], match: str
) -> None:
    with (
        pytest.raises(kind, match=f"tensor 'odd one' cannot be saved: .*{match}"),
        TensorSerializer(path) as serializer,
    ):
        serializer.write_tensor(0, "odd one", TensorType.PARAM, array)
    assert not Path(path).exists()


def test_what_is_no_module(path: str) -> None:
    with TensorSerializer(path) as serializer:
        with pytest.raises(TypeError, match=r"m is Tensor, and must be a torch\.nn\.Module"):
            serializer.write_module(torch.ones(2))  # type: ignore[arg-type]
        serializer.write_state_dict({"w": torch.ones(2)})
