"""Tensors to save, of every dtype and shape, and comparison to the last bit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

# Dtypes that numpy has, by their torch names. The others are opaque in a file.
NUMPY_NAMES = [
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
OPAQUE_NAMES = [
    "bfloat16",
    "complex32",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "uint1",
    "uint2",
    "uint3",
    "uint4",
    "uint5",
    "uint6",
    "uint7",
    "int1",
    "int2",
    "int3",
    "int4",
    "int5",
    "int6",
    "int7",
    "bits1x8",
    "bits2x4",
    "bits4x2",
    "bits8",
    "bits16",
]
# Dtypes that a safetensors file can hold.
SAFETENSORS_NAMES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    "float4_e2m1fn_x2",
]
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in NUMPY_NAMES + OPAQUE_NAMES}
SHAPES: dict[str, tuple[int, ...]] = {
    "scalar": (),
    "one": (1,),
    "vector": (37,),
    "matrix": (5, 7),
    "deep": (2, 3, 1, 4, 2),
    "empty": (0,),
    "empty inside": (3, 0, 2),
}

# Functions that turn a plain matrix into a tensor of another kind. None of them keeps its elements
# in memory of its own, as a plain tensor does.
OTHER_KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "two tensors": lambda tensor: TwoTensor(tensor, tensor.clone()),
    "fake": lambda tensor: FakeTensorMode().from_tensor(tensor),
    "sparse": torch.Tensor.to_sparse,
    "csr": torch.Tensor.to_sparse_csr,
    "mkldnn": torch.Tensor.to_mkldnn,
    "nested": lambda tensor: torch.nested.nested_tensor([tensor, tensor[1:]]),
    "quantized": lambda tensor: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8),
}


def freed(tensor: torch.Tensor) -> torch.Tensor:
    """Frees the tensor's memory, as code does that keeps the data elsewhere."""
    tensor.untyped_storage().resize_(0)
    return tensor


def stored_dtype(dtype: torch.dtype) -> bytes:
    """Returns the dtype string of the format, derived from numpy and docs/format.md."""
    name = str(dtype).removeprefix("torch.")
    if name in NUMPY_NAMES:
        return str(torch.empty(0, dtype=dtype).numpy().dtype.str).encode()
    size = dtype.itemsize
    order = "|" if size == 1 else "<"
    return f"{order}V{size}".encode() + b"\0" + str(dtype).encode()


def random_bytes(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)


def sample(dtype: torch.dtype, shape: tuple[int, ...] = (5, 7), seed: int = 0) -> torch.Tensor:
    """Returns a tensor of random bits, including NaNs of any payload. Bools are 0 or 1."""
    count = math.prod(shape)
    raw = random_bytes(count * dtype.itemsize, seed)
    if dtype == torch.bool:
        return (raw & 1).to(torch.bool).reshape(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return raw.view(dtype).reshape(shape)


def raw(tensor: torch.Tensor) -> bytes:
    """Returns the bytes of the elements of any CPU tensor, in order."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if flat.numel() == 0:
        return b""
    return bytes(flat.reshape(-1).view(torch.uint8).numpy().data)


def same(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether dtype, shape and every bit are equal."""
    return (
        actual.dtype == expected.dtype
        and actual.shape == expected.shape
        and raw(actual) == raw(expected)
    )


def assert_same(actual: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    assert list(actual) == list(expected)
    for name, tensor in expected.items():
        got = actual[name]
        assert got.dtype == tensor.dtype, name
        assert got.shape == tensor.shape, name
        assert raw(got) == raw(tensor), name


def by_shape(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Returns one tensor of each shape."""
    return {name: sample(dtype, shape, seed) for seed, (name, shape) in enumerate(SHAPES.items())}


def zoo(shape: tuple[int, ...] = (5, 7)) -> dict[str, torch.Tensor]:
    """Returns one tensor of each dtype."""
    return {name: sample(dtype, shape, seed) for seed, (name, dtype) in enumerate(DTYPES.items())}


def random_model(dice: random.Random) -> dict[str, torch.Tensor]:
    """Returns some tensors that a safetensors file can hold."""
    return {
        f"layers.{i}.{dice.choice('äbc')}": sample(
            DTYPES[dice.choice(SAFETENSORS_NAMES)],
            tuple(2 * dice.randrange(30) for _ in range(dice.randrange(1, 4))),
            i,
        )
        for i in range(dice.randrange(5, 40))
    }


def flip(path: str | Path, offset: int) -> None:
    """Flips a bit of a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
