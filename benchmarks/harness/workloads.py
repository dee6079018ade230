"""The state dicts to load and save: seeded random bytes in the shapes of several models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.harness.memory import State

Shapes = dict[str, tuple[int, ...]]

MIB = 1 << 20


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    dtype: torch.dtype
    shapes: Callable[[bool], Shapes]
    # How often one process repeats a load or save that takes milliseconds.
    repeats: int = 1

    def bytes(self, quick: bool) -> int:
        return sum(math.prod(shape) for shape in self.shapes(quick).values()) * self.dtype.itemsize


def of_mib(count: int, mebibytes: int) -> Shapes:
    """Return the shapes of float32 tensors of so many MiB each."""
    return {f"layers.{i}.weight": (mebibytes * MIB // 4,) for i in range(count)}


def _large(quick: bool) -> Shapes:
    return of_mib(6, 4) if quick else of_mib(32, 32)


def _small(quick: bool) -> Shapes:
    return {f"layers.{i}.bias": (256,) for i in range(300 if quick else 3000)}


def _single(quick: bool) -> Shapes:
    return of_mib(1, 96 if quick else 2048)


@dataclass(frozen=True)
class Decoder:
    """A language model: grouped-query attention, gated MLP, tied embeddings."""

    width: int
    wide: int
    keys: int
    layers: int
    vocabulary: int
    biases: bool = False  # whether queries, keys and values have biases

    def shapes(self) -> Shapes:
        width, wide, keys = self.width, self.wide, self.keys
        shapes: Shapes = {"model.embed_tokens.weight": (self.vocabulary, width)}
        for i in range(self.layers):
            layer = f"model.layers.{i}."
            for name, rows in (("q", width), ("k", keys), ("v", keys)):
                shapes[layer + f"self_attn.{name}_proj.weight"] = (rows, width)
                if self.biases:
                    shapes[layer + f"self_attn.{name}_proj.bias"] = (rows,)
            shapes[layer + "self_attn.o_proj.weight"] = (width, width)
            shapes[layer + "mlp.gate_proj.weight"] = (wide, width)
            shapes[layer + "mlp.up_proj.weight"] = (wide, width)
            shapes[layer + "mlp.down_proj.weight"] = (width, wide)
            shapes[layer + "input_layernorm.weight"] = (width,)
            shapes[layer + "post_attention_layernorm.weight"] = (width,)
        shapes["model.norm.weight"] = (width,)
        return shapes


TINY_DECODER = Decoder(width=1024, wide=4096, keys=256, layers=3, vocabulary=16032)
BILLION = Decoder(width=2048, wide=8192, keys=512, layers=12, vocabulary=128256)
HALF_A_BILLION = Decoder(width=896, wide=4864, keys=128, layers=24, vocabulary=151936, biases=True)


def _decoder(decoder: Decoder, quick: bool) -> Shapes:
    return (TINY_DECODER if quick else decoder).shapes()


LARGE = Workload("large", "1 GiB in tensors of 32 MiB", torch.float32, _large)
SMALL = Workload("small", "3,000 tensors of 1 KiB", torch.float32, _small, repeats=11)
TRANSFORMER = Workload(
    *("transformer", "a transformer's shapes in bfloat16"),
    *(torch.bfloat16, partial(_decoder, BILLION)),
)
LOCAL = (
    *(LARGE, SMALL, Workload("single", "one tensor of 2 GiB", torch.float32, _single)),
    TRANSFORMER,
)
# Loaded from a distant server, all at once and one at a time.
FAR = Workload("far", "3,000 tensors of 1 KiB", torch.float32, lambda _: _small(quick=False))
LAZY = Workload(
    *("lazy", "1,500 tensors of 4 KiB", torch.float32),
    lambda quick: {f"layers.{i}.weight": (1024,) for i in range(300 if quick else 1500)},
)
# For code that was written for tensorizer.
CLASSIC = Workload(
    *("transformer", "a gigabyte in a transformer's shapes"),
    *(torch.bfloat16, partial(_decoder, HALF_A_BILLION)),
)


def of_8_mib(mebibytes: int) -> Workload:
    return Workload(
        *("parts", f"{mebibytes} MiB in tensors of 8 MiB", torch.float32),
        lambda quick: of_mib(2 if quick else mebibytes // 8, 8),
    )


def make(workload: Workload, quick: bool = False) -> State:
    """Make the tensors of a workload; every block of 64 MiB is different.

    Random numbers are slow to generate, so 64 MiB are generated once, and each block is that XORed
    with a random constant.
    """
    generator = torch.Generator().manual_seed(20240229)
    lowest, highest = -(2**63), 2**63 - 1
    block = torch.randint(lowest, highest, (8 * MIB,), generator=generator)
    tensors: State = {}
    for name, shape in workload.shapes(quick).items():
        tensor = torch.empty(shape, dtype=workload.dtype)
        for part in tensor.view(-1).view(torch.int64).split(block.numel()):
            constant = torch.randint(lowest, highest, (), generator=generator)
            torch.bitwise_xor(block[: part.numel()], constant, out=part)
        tensors[name] = tensor
    return tensors


def companion(tensors: State, size: int = 32 * MIB) -> State:
    """Return up to 1 GiB of a single tensor as tensors of `size` bytes, to compare both."""
    data = next(iter(tensors.values())).view(-1)
    count = 1024 * MIB // size
    return {f"part.{i}": part for i, part in enumerate(data.split(size // 4)[:count])}
