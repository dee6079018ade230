"""Whether weights are those that an update has left, whoever writes to them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from tensorizer_ops._versions.checksums import checksums, weighed_sums


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.first = torch.nn.Parameter(torch.randn(257, 300, generator=generator).bfloat16())
        self.tied = self.first
        self.register_buffer("small", torch.tensor([1, 2, 3], dtype=torch.uint8))
        self.register_buffer("scale", torch.ones(300).to(torch.float8_e4m3fn))
        self.register_buffer("odd", self.first.data[3, 1:])  # no whole word
        self.register_buffer("other", self.first.data[3:8, 1:].t())
        self.register_buffer("none", torch.empty(0))
        self.register_buffer("cache", torch.zeros(9), persistent=False)


def swap(model: Model) -> None:
    model.first.data[[7, 200]] = model.first.data[[200, 7]]


def swap_in_a_block(model: Model) -> None:
    words = model.first.data.view(-1)[: 512 * 4].view(16, 128)
    words.copy_(words.flip(0))  # as heads of a bias


def zero_memory(model: Model) -> None:
    ctypes.memset(model.first.data_ptr() + 154198, 0, 2)  # the last element


def set_last(name: str, value: float) -> Callable[[Model], None]:
    def write(model: Model) -> None:
        getattr(model, name).view(-1)[-1].data.fill_(value)

    return write


WRITES = [
    swap,
    swap_in_a_block,
    zero_memory,
    *(set_last(name, 5) for name in ("first", "small", "scale")),
]


@pytest.mark.parametrize("write", WRITES)
def test_each_change_is_noticed(write: Callable[[Model], None]) -> None:
    model = Model()
    before = checksums(model)
    with torch.inference_mode():
        assert checksums(model) == before
    write(model)
    assert checksums(model) != before


def test_what_is_no_change() -> None:
    model = Model()
    before = checksums(model)
    assert len(before) == 6  # tied weights have one
    model.get_buffer("cache").fill_(1)
    model.first.data.copy_(model.first.clone())
    assert checksums(model) == before


def test_devices_add_in_parts() -> None:
    numbers = torch.arange(40_000 * 512) * 0x1234567887654321
    blocks = numbers.view(-1, 512)
    assert torch.equal(weighed_sums(blocks, on_cpu=False), weighed_sums(blocks, on_cpu=True))
