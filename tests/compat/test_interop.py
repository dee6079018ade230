"""This library and PyPI's tensorizer read each other's files bit for bit, with hashes checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorizer import TensorDeserializer, TensorSerializer
from tensorizer.serialization import HashMismatchError

import tensorizer_ops
from support.command import run as run_command
from support.samples import (
    DTYPES,
    NUMPY_NAMES,
    SHAPES,
    assert_same,
    by_shape,
    flip,
    raw,
    same,
    sample,
    zoo,
)
from tensorizer_ops._front.inspection import File

ops = torch.ops.tensorizer

State = dict[str, torch.Tensor]

MODES: dict[str, dict[str, Any]] = {
    "eager": {"verify_hash": True},
    "lazy": {"verify_hash": True, "lazy_load": True},
    "plaid": {"verify_hash": True, "plaid_mode": True},
    "readers": {"verify_hash": True, "num_readers": 2},
}
NAMES = [
    "plain",
    "dots.in.a.name",
    "white space and\ttab",
    "Umläute und 漢字 🙂",
    "quote'\"\\back",
    "per%20cent?query#hash",
    "../up/and/down",
    "a" * 65535,
    "é" * 32767,
]


def nested(*steps: str | int) -> str:
    return "\x1e" + json.dumps(steps, separators=(",", ":"))


def classic_save(path: str, tensors: Any) -> None:
    serializer = TensorSerializer(path)
    serializer.write_state_dict(tensors)
    serializer.close()


def classic_load(path: str, **options: Any) -> TensorDeserializer:
    return TensorDeserializer(path, device="cpu", **options)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_tensorizer_reads_every_dtype_and_shape(path: str, dtype: torch.dtype) -> None:
    tensors = by_shape(dtype)
    ops.save(path, tensors)
    with classic_load(path, verify_hash=True) as loaded:
        assert_same(loaded, tensors)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_reads_every_dtype_and_shape_of_tensorizer(path: str, dtype: torch.dtype) -> None:
    tensors = by_shape(dtype)
    if str(dtype).removeprefix("torch.") not in NUMPY_NAMES:
        # tensorizer cannot open a file with an empty tensor of an opaque dtype.
        tensors = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    classic_save(path, tensors)
    assert_same(ops.load(path, verify="all"), tensors)
    assert_same(ops.load(path, verify="all", copy=True), tensors)


def test_tensorizer_reads_meta_tensors_as_zeros(path: str) -> None:
    tensors = {
        f"{name} {kind}": torch.empty(shape, dtype=dtype, device="meta")
        for name, dtype in DTYPES.items()
        for kind, shape in SHAPES.items()
    }
    ops.save(path, tensors)
    zeros = {
        name: torch.zeros(tensor.numel() * tensor.itemsize, dtype=torch.uint8)
        .view(tensor.dtype)
        .reshape(tensor.shape)
        if tensor.numel()
        else torch.empty(tensor.shape, dtype=tensor.dtype)
        for name, tensor in tensors.items()
    }
    with classic_load(path, verify_hash=True) as loaded:
        assert_same(loaded, zeros)
    assert_same(ops.load(path, verify="all"), zeros)


def test_reads_meta_tensors_of_tensorizer(path: str) -> None:
    # None is 0-dimensional, because tensorizer fails on those.
    classic_save(
        path,
        {
            "meta": torch.empty(3, 4, device="meta"),
            "half": torch.empty(7, dtype=torch.bfloat16, device="meta"),
            "real": torch.ones(2),
        },
    )
    loaded = ops.load(path, verify="all")
    assert same(loaded["meta"], torch.zeros(3, 4))
    assert same(loaded["half"], torch.zeros(7, dtype=torch.bfloat16))
    assert same(loaded["real"], torch.ones(2))


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_tensorizer(path: str, mode: str) -> None:
    tensors = {f"{i}.{name}": tensor for i in range(3) for name, tensor in zoo((31, 17)).items()}
    tensors["large"] = sample(torch.float32, (300, 1000))
    ops.save(path, tensors)
    with classic_load(path, **MODES[mode]) as loaded:
        for name, tensor in tensors.items():
            assert same(loaded[name], tensor), name


@pytest.mark.parametrize("hashes", ["all", "crc32", "sha256"])
def test_tensorizer_verifies_each_choice_of_hashes(path: str, hashes: str) -> None:
    tensors = zoo()
    ops.save(path, tensors, hashes=hashes)
    with classic_load(path, verify_hash=True) as loaded:
        assert_same(loaded, tensors)


def with_writer(path: str, tensors: State) -> None:
    with tensorizer_ops.Writer(path) as writer:
        for name, tensor in tensors.items():
            writer[name] = tensor


def converted(path: str, tensors: State) -> None:
    tensorizer_ops.save(path + ".safetensors", tensors)
    tensorizer_ops.convert(path + ".safetensors", path)


def by_command(path: str, tensors: State) -> None:
    tensorizer_ops.save(path + ".safetensors", tensors, hashes="none")
    run_command("convert", path + ".safetensors", path)


DEFAULTS: dict[str, Callable[[str, State], object]] = {
    "the operator": ops.save,
    "save": tensorizer_ops.save,
    "save_async": lambda path, tensors: tensorizer_ops.save_async(path, tensors).result(),
    "Writer": with_writer,
    "convert": converted,
    "the command": by_command,
}


@pytest.mark.parametrize("way", DEFAULTS)
def test_tensorizer_verifies_what_is_saved_by_default(path: str, way: str) -> None:
    tensors = {"a": torch.arange(9), "x": sample(torch.float32, (700, 1000))}
    DEFAULTS[way](path, tensors)
    assert File(path, None).hashes()[1] == ["crc32", "chunked"]
    with classic_load(path, verify_hash=True) as loaded:
        assert_same(loaded, tensors)
    flip(path, 2_000_000)
    with pytest.raises(HashMismatchError, match="'x'"), classic_load(path, verify_hash=True) as bad:
        bad["x"]


def test_a_serializer_saves_the_hashes_of_tensorizer(path: str) -> None:
    with tensorizer_ops.TensorSerializer(path) as serializer:
        serializer.write_state_dict({"x": torch.ones(3)})
    assert File(path, None).hashes()[1] == ["crc32", "sha256"]


def test_tensorizer_reads_without_hashes(path: str) -> None:
    tensors = zoo()
    ops.save(path, tensors, hashes="none")
    with classic_load(path) as loaded:
        assert_same(loaded, tensors)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:12])
def test_names_both_ways(path: str, name: str) -> None:
    tensors = {name: sample(torch.float32), "other": sample(torch.int8)}
    ops.save(path, tensors)
    with classic_load(path, verify_hash=True) as loaded:
        assert_same(loaded, tensors)
    classic_save(path, tensors)
    assert ops.names(path) == list(tensors)
    assert_same(ops.load(path, verify="all"), tensors)


def flatten(tree: Any, steps: tuple[str | int, ...] = ()) -> dict[str, torch.Tensor]:
    """Returns the tensors of a nested structure by their stored names."""
    if isinstance(tree, torch.Tensor):
        plain = len(steps) == 1 and isinstance(steps[0], str)
        return {str(steps[0]) if plain else nested(*steps): tree}
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    return {
        name: tensor
        for key, value in items
        for name, tensor in flatten(value, (*steps, key)).items()
    }


TREES: dict[str, Any] = {
    "list": [sample(torch.float32), sample(torch.int16)],
    "mapping": {"layers": {"0": {"w": sample(torch.float32)}, "ü": sample(torch.bool)}},
    "mixed": {
        "list": [{"a": sample(torch.float64)}, [sample(torch.uint8, ()), sample(torch.int8)]],
        "plain": sample(torch.bfloat16),
        'quote"\\\n': {"\x1e": sample(torch.int64), "": sample(torch.int32)},
    },
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_nested_names_both_ways(path: str, tree: Any) -> None:
    stored = flatten(tree)
    classic_save(path, tree)
    assert_same(ops.load(path, verify="all"), stored)

    ops.save(path, stored)

    def check(value: Any, expected: Any) -> None:
        if isinstance(expected, torch.Tensor):
            assert same(value, expected)
            return
        for key in expected if isinstance(expected, Mapping) else range(len(expected)):
            check(value[key], expected[key])

    with classic_load(path, verify_hash=True) as loaded:
        check(loaded, tree)


def module() -> torch.nn.Module:
    root = torch.nn.Module()
    root.weight = torch.nn.Parameter(sample(torch.int16, (4, 6)).float())
    root.register_buffer("steps", sample(torch.int64, ()))
    root.block = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    for tensor in root.state_dict().values():
        if tensor.dtype == torch.float32:
            tensor.copy_(sample(torch.int16, tuple(tensor.shape)))
    return root


def test_reads_a_module_of_tensorizer(path: str) -> None:
    root = module()
    serializer = TensorSerializer(path)
    serializer.write_module(root)
    serializer.close()
    loaded = ops.load(path, verify="all")
    expected = root.state_dict()
    assert set(loaded) == set(expected)
    assert_same({name: loaded[name] for name in expected}, expected)
    # A tensor of the root module is found by its name without the stored leading dot.
    assert same(ops.load_tensors(path, ["weight"])[0], root.weight)


def test_tensorizer_loads_a_module_written_tensor_by_tensor(path: str) -> None:
    root = module()
    writer = torch.classes.tensorizer.Writer(path, None)
    parameters = dict(root.named_parameters())
    positions = {name: index for index, (name, _) in enumerate(root.named_modules())}
    for name, tensor in root.state_dict().items():
        owner, _, own = name.rpartition(".")
        kind = 0 if name in parameters else 1
        writer.add(f"{owner}.{own}", tensor, kind, positions[owner])
    writer.close()

    fresh = module()
    for tensor in fresh.state_dict().values():
        tensor.zero_()
    with classic_load(path, verify_hash=True) as loaded:
        assert loaded.load_into_module(fresh) == len(root.state_dict())
    for name, tensor in root.state_dict().items():
        assert raw(fresh.state_dict()[name]) == raw(tensor), name
    assert same(ops.load(path)["weight"], root.weight)


def test_tensorizer_reads_long_dimensions(path: str) -> None:
    tensors = {"long": torch.empty(2**32, 0), "wide": torch.empty(0, 2**40), "x": torch.ones(3)}
    ops.save(path, tensors)
    with classic_load(path, verify_hash=True) as loaded:
        assert_same(loaded, tensors)
    classic_save(path, tensors)
    assert_same(ops.load(path, verify="all"), tensors)


def test_files_of_tensorizer_are_not_changed_by_loading(path: str) -> None:
    classic_save(path, zoo((100, 100)))
    before = Path(path).read_bytes()
    for tensor in ops.load(path).values():
        tensor.view(-1).view(torch.uint8).fill_(1)
    assert Path(path).read_bytes() == before
