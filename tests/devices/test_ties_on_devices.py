"""Tied tensors on devices: they share memory of the device, or are copied there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from support import sim_device
from support.samples import same, sample
from support.tied import SHARE, share_memory, share_nothing

ops = torch.ops.tensorizer

LARGE = sample(torch.float32, (3000, 700))
NAMES = ["a", "b", "c"]


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with sim_device.fresh():
        yield
        assert not sim_device.violations()


@pytest.fixture
def shared(path: str) -> str:
    ops.save(path, dict.fromkeys(NAMES, LARGE.to("sim")), options=SHARE)
    return path


@pytest.mark.parametrize("verify", ["none", "all"])
@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_loads(shared: str, verify: str, dtype: torch.dtype | None) -> None:
    loaded = ops.load(shared, device="sim", verify=verify, dtype=dtype)
    assert share_memory(*loaded.values())
    separate = ops.load_tensors(shared, NAMES, device="sim", verify=verify, dtype=dtype)
    assert share_nothing(*separate)
    for tensor in [*loaded.values(), *separate]:
        assert same(tensor.cpu(), LARGE.to(dtype or torch.float32))


def test_outputs_on_several_devices(shared: str) -> None:
    out = [
        torch.zeros(3000, 700, dtype=torch.float16, device="sim"),
        torch.zeros(700, 3000, device="sim").t(),
        torch.zeros(3000, 700),
    ]
    ops.load_into(shared, NAMES, out, verify="all", cast=True)
    assert same(out[0].cpu(), LARGE.half())
    assert same(out[1].cpu(), LARGE)
    assert same(out[2], LARGE)
