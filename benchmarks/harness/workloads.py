"""The state dicts to load and save: seeded random bytes in the shapes of several models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.harness.memory import State

Shapes = dict[str, tuple[int, ...]]

MIB = 1 << 20


@dataclass(frozen=True)
class Workload:
    shapes: Callable[[bool], Shapes]  # its argument says whether the run is quick
    dtype: torch.dtype = torch.float32
    # How often one process repeats a load or save that takes milliseconds.
    repeats: int = 1

    def bytes(self, quick: bool) -> int:
        return sum(math.prod(shape) for shape in self.shapes(quick).values()) * self.dtype.itemsize


def layers(count: int, elements: int) -> Shapes:
    return {f"layers.{i}.weight": (elements,) for i in range(count)}


def of_mib(count: int, mebibytes: int) -> Shapes:
    """Return the shapes of float32 tensors of so many MiB each."""
    return layers(count, mebibytes * MIB // 4)


def of_8_mib(mebibytes: int) -> Workload:
    return Workload(lambda quick: of_mib(2 if quick else mebibytes // 8, 8))


def decoder(
    width: int, wide: int, keys: int, blocks: int, vocabulary: int, biases: bool = False
) -> Shapes:
    """Return the shapes of a language model: grouped-query attention, gated MLP, tied embeddings.

    If `biases`, queries, keys and values have biases.
    """
    shapes: Shapes = {"model.embed_tokens.weight": (vocabulary, width)}
    for i in range(blocks):
        block = f"model.layers.{i}."
        for name, rows in (("q", width), ("k", keys), ("v", keys)):
            shapes[block + f"self_attn.{name}_proj.weight"] = (rows, width)
            if biases:
                shapes[block + f"self_attn.{name}_proj.bias"] = (rows,)
        shapes[block + "self_attn.o_proj.weight"] = (width, width)
        shapes[block + "mlp.gate_proj.weight"] = (wide, width)
        shapes[block + "mlp.up_proj.weight"] = (wide, width)
        shapes[block + "mlp.down_proj.weight"] = (width, wide)
        shapes[block + "input_layernorm.weight"] = (width,)
        shapes[block + "post_attention_layernorm.weight"] = (width,)
    shapes["model.norm.weight"] = (width,)
    return shapes


TINY, BILLION = decoder(1024, 4096, 256, 3, 16032), decoder(2048, 8192, 512, 12, 128256)
HALF_A_BILLION = decoder(896, 4864, 128, 24, 151936, biases=True)

LARGE = Workload(lambda quick: of_mib(6, 4) if quick else of_mib(32, 32))
SMALL = Workload(lambda quick: layers(300 if quick else 3000, 256), repeats=11)
SINGLE = Workload(lambda quick: of_mib(1, 96 if quick else 2048))
TRANSFORMER = Workload(lambda quick: TINY if quick else BILLION, torch.bfloat16)
# Loaded from a distant server, all at once and one at a time.
FAR = Workload(lambda _: layers(3000, 256))
LAZY = Workload(lambda quick: layers(300 if quick else 1500, 1024))
# For code that was written for tensorizer.
CLASSIC = Workload(lambda quick: TINY if quick else HALF_A_BILLION, torch.bfloat16)


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
