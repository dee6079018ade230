"""Loads of parts of tensors."""

from __future__ import annotations

import os
import random
from pathlib import Path
from types import EllipsisType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import tensorizer_ops
from support.process import feed
from support.samples import DTYPES, SAFETENSORS_NAMES, assert_same, sample
from tensorizer_ops import errors

ops = torch.ops.tensorizer
Reader = torch.classes.tensorizer.Reader

KEY = "named:slices"
Index = slice | int | EllipsisType


@pytest.fixture(autouse=True)
def key() -> None:
    tensorizer_ops.keys.add("slices", key=bytes(range(32)))


def part_of(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """Returns what torch's own indexing gives; also for dtypes that torch cannot copy."""
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    plain = tensor.view(same_size.get(tensor.itemsize, tensor.dtype))
    part = plain[index]
    return torch.empty(part.shape, dtype=plain.dtype).copy_(part).view(tensor.dtype)


def random_index(size: int, dice: random.Random) -> Index:
    kind = dice.randrange(6)
    if kind == 0 and size > 0:
        return dice.randrange(-size, size)
    bounds = [None, *range(-size - 3, size + 4)]
    step = dice.choice([None, 1, 1, 2, 3, size + 1]) if kind < 4 else None
    return slice(dice.choice(bounds), dice.choice(bounds), step)


def random_slice(shape: torch.Size, dice: random.Random) -> Any:
    indices: list[Index] = [random_index(size, dice) for size in shape]
    if indices and dice.randrange(3) == 0:
        begin = dice.randrange(len(indices))
        end = dice.randrange(begin, len(indices) + 1)
        indices[begin:end] = [...]
    elif dice.randrange(4) == 0:
        del indices[dice.randrange(len(indices) + 1) :]
    return indices[0] if len(indices) == 1 and dice.randrange(2) else tuple(indices)


def random_shape(dice: random.Random) -> tuple[int, ...]:
    if dice.randrange(6) == 0:
        return (dice.randrange(1, 300), dice.randrange(1, 3000))
    return tuple(dice.choice([1, 2, 3, 7, 20]) for _ in range(dice.randrange(5)))


@pytest.mark.parametrize("kind", ["tensors", "encrypted", "safetensors"])
def test_parts_are_those_of_torch_indexing(tmp_path: Path, kind: str) -> None:
    dice = random.Random(kind)
    names = SAFETENSORS_NAMES if kind == "safetensors" else [*DTYPES]
    path = str(tmp_path / "model")
    options = {"key": KEY} if kind == "encrypted" else {}
    for _ in range(6):
        tensors = {}
        for number in range(40):
            dtype = dice.choice([*names])
            shape = random_shape(dice)
            if dtype == "float4_e2m1fn_x2" and not shape:
                shape = (2,)
            tensors[f"{number}.{dtype}"] = sample(DTYPES[dtype], shape)
        if kind == "safetensors":
            save_file(tensors, path)
        else:
            ops.save(path, tensors, options=options)
        slices = {
            name: random_slice(tensor.shape, dice)
            for name, tensor in tensors.items()
            if dice.randrange(5)
        }
        expected = {
            name: part_of(tensor, slices[name]) if name in slices else tensor
            for name, tensor in tensors.items()
        }
        order = dice.sample([*tensors], len(tensors))
        loaded = tensorizer_ops.load(
            path,
            names=order,
            slices=slices,
            copy=dice.random() < 0.5,
            threads=dice.randrange(1, 4),
            verify=dice.choice(["none", "all"] if options else ["none"]),
            options={**options, "memory_ceiling": str(dice.choice([1 << 20, 1 << 28]))},
        )
        assert list(loaded) == order
        assert_same(loaded, {name: expected[name] for name in order})


def test_a_cast(path: str) -> None:
    tensors = {"half": torch.rand(50, 60).half(), "number": torch.arange(20).view(4, 5)}
    ops.save(path, tensors)
    slices = {"half": (slice(3, 40, 2), slice(None, -5)), "number": (..., slice(1, 3))}
    loaded = tensorizer_ops.load(path, slices=slices, dtype=torch.float64)
    assert_same(
        loaded,
        {
            "half": tensors["half"][3:40:2, :-5].double(),
            "number": tensors["number"][..., 1:3].contiguous(),
        },
    )


def test_bounds_and_steps_of_any_size(path: str) -> None:
    x = torch.arange(24).view(4, 6)
    ops.save(path, {"x": x})
    for big in (2**63 - 1, 2**63, 2**70):
        for index in (slice(None, None, big), slice(2, None, big), slice(-big, big, big)):
            expected = x[slice(*index.indices(4)[:2])][:1]
            assert torch.equal(tensorizer_ops.load(path, slices={"x": index})["x"], expected)


def test_nothing_of_a_tensor(path: str) -> None:
    ops.save(path, {"x": torch.rand(3, 4), "empty": torch.rand(0, 4)})
    slices: dict[str, Any] = {"x": (slice(2, 2), 1), "empty": (slice(5), slice(1, 3))}
    loaded = tensorizer_ops.load(path, slices=slices)
    assert [tensor.shape for tensor in loaded.values()] == [(0,), (0, 2)]


def test_rows_of_a_local_file_are_views_of_it(path: str) -> None:
    x = torch.rand(1000, 64)
    ops.save(path, {"x": x})
    with open("/proc/self/maps") as maps:
        before = maps.read().count(path)
    for index in (slice(100, 900), 7, (7, slice(3, 9)), (slice(7, 8), slice(2, 60))):
        loaded = tensorizer_ops.load(path, slices={"x": index})["x"]
        with open("/proc/self/maps") as maps:
            assert maps.read().count(path) > before, index
        loaded += 1
        assert torch.equal(loaded, x[index] + 1)
        del loaded
    assert torch.equal(tensorizer_ops.load(path)["x"], x)
    columns = tensorizer_ops.load(path, slices={"x": (slice(None), slice(3))})["x"]
    with open("/proc/self/maps") as maps:
        assert maps.read().count(path) == before
    copied = tensorizer_ops.load(path, slices={"x": slice(3)}, copy=True)["x"]
    with open("/proc/self/maps") as maps:
        assert maps.read().count(path) == before
    assert torch.equal(columns, x[:, :3]) and torch.equal(copied, x[:3])


@pytest.mark.parametrize(
    ("index", "why"),
    [
        (5, "index 5 is out of range for dimension 0"),
        ((0, -5), "index -5 is out of range for dimension 1"),
        ((0, 0, 0), "its index has 3 dimensions"),
        ((..., 0, ...), "its index has more than one Ellipsis"),
        (None, "its index has None, which would add a dimension: unsqueeze()"),
        ((slice(None, None, -1),), "negative step, which tensors do not have"),
        (slice(0, 1, 0), "slice step cannot be zero"),
        (slice(0.5), "slice indices must be integers"),
        ("a", "its index for dimension 0 is str: only slices, integers and Ellipsis"),
        ([0, 1], "its index for dimension 0 is list"),
        (True, "its index for dimension 0 is bool"),
        (torch.tensor([0, 1]), "its index for dimension 0 is Tensor that is no integer"),
        (torch.tensor([1]), "its index for dimension 0 is Tensor that is no integer"),
        (torch.tensor(True), "its index for dimension 0 is Tensor that is no integer"),
        (1.0, "its index for dimension 0 is float"),
    ],
)
def test_what_does_not_fit_names_tensor_and_shape(path: str, index: Any, why: str) -> None:
    ops.save(path, {"layer.x": torch.rand(3, 4)})
    with pytest.raises(errors.InvalidArgument) as caught:
        tensorizer_ops.load(path, slices={"layer.x": index})
    assert "tensor 'layer.x' has the shape [3, 4]" in str(caught.value)
    assert why in str(caught.value)


def test_integers_of_other_types(path: str) -> None:
    import numpy

    x = torch.rand(3, 4)
    ops.save(path, {"x": x})
    index = (torch.tensor(1), slice(numpy.int64(1), numpy.int32(-1)))
    assert torch.equal(tensorizer_ops.load(path, slices={"x": index})["x"], x[1, 1:-1])


def test_names_that_do_not_fit(path: str) -> None:
    ops.save(path, {"x": torch.rand(3, 4), "y": torch.rand(2)})
    with pytest.raises(KeyError, match="no tensor 'z'"):
        tensorizer_ops.load(path, slices={"z": 0})
    with pytest.raises(errors.InvalidArgument, match="'y', which is not among names"):
        tensorizer_ops.load(path, names=["x"], slices={"y": 0})
    for wrong in (["x"], "x", 5):
        with pytest.raises(TypeError, match=r"slices is (list|str|int), and must be a dict"):
            tensorizer_ops.load(path, slices=wrong)
    with pytest.raises(TypeError, match="slices has a name that is int"):
        tensorizer_ops.load(path, slices={1: 0})


@pytest.mark.parametrize(
    ("slices", "why"),
    [
        (([2], [0], [0], [1]), "a slice is of tensor number 2 of the 2 names"),
        (([-1], [0], [0], [1]), "a slice is of tensor number -1"),
        (([0], [2], [0], [1]), "tensor 'x' (index entry 0) has the shape [3, 4], and no dimension"),
        (([0], [-1], [0], [1]), "and no dimension -1"),
        (([1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1]), "and two slices of dimension 1"),
        (([0], [1], [3], [2]), "dimension 1 does not have 2 elements from 3 on with a step of 1"),
        (([0], [1], [-1], [1]), "elements from -1 on"),
        (([0], [1], [0], [-1]), "does not have -1 elements"),
        (([0], [1], [5], [0]), "does not have 0 elements from 5 on"),
        (([0], [1], [2**62], [2**62]), "elements from 4611686018427387904 on"),
        (([0], [1], [0], [3], [2]), "with a step of 2"),
        (([0], [1], [0], [1], [0]), "with a step of 0"),
        (([0], [1], [1], [2], [2**63 - 1]), "with a step of 9223372036854775807"),
        (([0], [1], [0], []), "differ in number"),
        (([0], [1], [0], [1], []), "differ in number"),
    ],
)
def test_the_typed_form_is_checked(path: str, slices: Any, why: str) -> None:
    ops.save(path, {"x": torch.rand(3, 4), "y": torch.rand(2)})
    for load in (
        lambda: ops.load_slices(path, ["x", "y"], *slices),
        lambda: Reader(path, None).load_slices(["x", "y"], *slices),
    ):
        with pytest.raises(errors.InvalidArgument) as caught:
            load()
        assert why in str(caught.value)


def test_the_typed_form(path: str) -> None:
    x, y = torch.rand(10, 20), torch.rand(5)
    ops.save(path, {"x": x, "y": y})
    slices = ([0, 0, 2], [0, 1, 1], [1, 2, 3], [4, 5, 6])
    for loaded in (
        ops.load_slices(path, ["x", "y", "x"], *slices),
        Reader(path, None).load_slices(["x", "y", "x"], *slices),
    ):
        expected = [x[1:5, 2:7], y, x[:, 3:9]]
        assert all(map(torch.equal, loaded, expected)) and len(loaded) == 3
    (stepped,) = ops.load_slices(path, ["x"], [0, 0], [0, 1], [1, 0], [3, 10], [4, 2])
    assert torch.equal(stepped, x[1::4, ::2])


def test_a_reader_loads_parts_again_and_again(path: str) -> None:
    x = torch.rand(100, 200)
    ops.save(path, {"x": x, "y": torch.rand(2)})
    reader = Reader(path, None)
    for rank in range(4):
        columns = slice(rank * 50, (rank + 1) * 50)
        loaded = tensorizer_ops.load_slices(reader, {"x": (slice(None), columns)})
        assert_same(loaded, {"x": x[:, columns].contiguous()})


def test_a_trace_says_which_form_it_takes(path: str) -> None:
    ops.save(path, {"x": torch.rand(3)})
    with pytest.raises(errors.InvalidArgument, match=r"call torch\.ops\.tensorizer\.load_slices"):
        torch.jit.trace(
            lambda y: y + tensorizer_ops.load(path, slices={"x": 0})["x"], torch.ones(1)
        )


@pytest.mark.parametrize("options", [{}, {"digests": "true"}])
def test_a_part_cannot_be_verified(path: str, options: dict[str, str]) -> None:
    x = torch.rand(30, 40)
    ops.save(path, {"x": x, "y": torch.rand(2)}, hashes="all", options=options)
    pinned = {"digest": tensorizer_ops.digest(path)}
    for index in (slice(3), (slice(None), 3), slice(0)):
        with pytest.raises(errors.InvalidArgument, match=r"'x'.*load all of it.* verify=.none."):
            tensorizer_ops.load(path, slices={"x": index}, verify="all")
        with pytest.raises(errors.InvalidArgument, match="without the option 'digest'"):
            tensorizer_ops.load(path, slices={"x": index}, options=pinned)
    # A slice that takes all of a tensor is no part.
    whole: dict[str, Any] = {"x": (slice(None), slice(0, 40))}
    assert torch.equal(tensorizer_ops.load(path, slices=whole, verify="all")["x"], x)
    assert torch.equal(tensorizer_ops.load(path, slices=whole, options=pinned)["x"], x)


def test_a_damaged_chunk_fails_the_parts_that_touch_it(path: str) -> None:
    x = torch.rand(4, 1 << 20)  # two chunks of 2 MiB in each row
    ops.save(path, {"x": x}, options={"key": KEY})
    stored = Reader(path, {"key": KEY}).stored("x")
    with open(path, "r+b") as stream:
        stream.seek(int(stored["data_offset"]) + 5 * (2 << 20))
        stream.write(bytes(8))
    for part in (slice(0, 100), slice(100, 1000, 7)):
        loaded = tensorizer_ops.load(path, slices={"x": (slice(None), part)}, options={"key": KEY})
        assert torch.equal(loaded["x"], x[:, part])
    with pytest.raises(errors.Crypto, match="tensor 'x'"):
        tensorizer_ops.load(path, slices={"x": (..., slice(1 << 19, None))}, options={"key": KEY})


def test_a_pipe_gives_parts_in_order(tmp_path: Path, path: str) -> None:
    tensors = {"x": torch.rand(300, 400), "y": torch.rand(500, 6), "z": torch.rand(9)}
    ops.save(path, tensors)
    fifo = str(tmp_path / "fifo")
    slices = {"x": (slice(None, None, 3), slice(10, 50)), "y": (..., 2)}
    with feed(fifo, Path(path).read_bytes()):
        loaded = tensorizer_ops.load(fifo, slices=slices)
    expected = {"x": tensors["x"][::3, 10:50], "y": tensors["y"][:, 2], "z": tensors["z"]}
    assert_same(loaded, {name: tensor.contiguous() for name, tensor in expected.items()})


def test_a_column_of_many_rows_takes_little_memory(path: str) -> None:
    from support.process import fork_python

    ops.save(path, {"x": torch.arange(2_000_000 * 32, dtype=torch.int32).view(2_000_000, 32)})
    script = f"""
import resource, torch, tensorizer_ops
tensorizer_ops.load({path!r}, slices={{"x": (slice(3), 1)}}, copy=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
x = tensorizer_ops.load({path!r}, slices={{"x": (slice(None), 5)}})["x"]
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
assert torch.equal(x, torch.arange(2_000_000, dtype=torch.int32) * 32 + 5)
assert grown < 8_000_000 + (24 << 20), grown
"""
    fork_python(script)
    with open("/proc/self/io") as counters:
        reads = int(counters.read().split("syscr: ")[1].split()[0])
    tensorizer_ops.load(path, slices={"x": (slice(None), 5)})
    with open("/proc/self/io") as counters:
        assert int(counters.read().split("syscr: ")[1].split()[0]) - reads < 3000
    os.unlink(path)
