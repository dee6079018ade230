"""Saves by ranks, and checkpoints, of tensors that wrap others, and have no memory of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.testing._internal.two_tensor import TwoTensor

import tensorizer_ops
from local_servers.web import nginx
from support.folders import save_folder
from support.ranks import run_ranks
from support.samples import assert_same, same
from tensorizer_ops import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.mark.parametrize("verify", ["none", "all"])
def test_wrappers_are_filled(tmp_path: Path, verify: str) -> None:
    saved = {name: torch.rand(3, 500) for name in ("one", "two", "plain")}
    with nginx(tmp_path) as web:
        save_folder(web.root / "c", saved)
        for place in (web.root / "c", web.url("c")):
            one = AsyncCollectiveTensor(torch.zeros(3, 500))
            two = TwoTensor(torch.zeros(3, 500), torch.zeros(3, 500))
            plain = torch.zeros(3, 500)
            checkpoint.load(place, {"one": one, "two": two, "plain": plain}, verify=verify)
            assert same(one.elem, saved["one"])
            assert same(two.a, saved["two"]) and same(two.b, saved["two"])
            assert same(plain, saved["plain"])


FLOAT8 = """
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh
from torchao.float8 import (
    Float8LinearConfig, convert_to_float8_training, precompute_float8_dynamic_scale_for_fsdp,
)
from tensorizer_ops import checkpoint

def build(seed):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 16)]
    model = torch.nn.Sequential(*layers)
    config = Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=True)
    convert_to_float8_training(model, config=config)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (size,)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)

def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.linspace(-1, 1, 32).repeat(16, 1)).sum().backward()
    optimizer.step()
    precompute_float8_dynamic_scale_for_fsdp(model)

def weights(model):
    return {name: p.full_tensor().tolist() for name, p in model.named_parameters()}

model, optimizer = build(0)
assert type(model[0].weight.to_local()).__name__ == "WeightWithDynamicFloat8CastTensor"
for _ in range(3):
    step(model, optimizer)
state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
checkpoint.save(given[0] + "/now", state)
checkpoint.save_async(given[0] + "/then", state).result()
step(model, optimizer)
expected = weights(model)
for when in ("now", "then"):
    model, optimizer = build(1)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    checkpoint.load(f"{given[0]}/{when}", state)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    step(model, optimizer)
    assert weights(model) == expected
report("trained")
"""


def test_training_in_float8_goes_on(tmp_path: Path) -> None:
    done = run_ranks(tmp_path / "ranks", FLOAT8, tmp_path, count=2)
    assert done.reports == ["trained", "trained"]


SAVES = """
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torch.testing._internal.two_tensor import TwoTensor
from torchao.float8.float8_training_tensor import LinearMMConfig
from torchao.float8.fsdp_utils import WeightWithDynamicFloat8CastTensor
mesh = init_device_mesh("cpu", (size,))
whole = torch.arange(24.0).view(8, 3)
mine = whole.chunk(size)[rank].clone()
released = mine.clone()
released.untyped_storage().resize_(0)
def shard(local):
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
distributed.save(given[0], {
    "float8": shard(WeightWithDynamicFloat8CastTensor(mine, LinearMMConfig(), torch.float8_e4m3fn)),
    "awaited": AsyncCollectiveTensor(whole),
    "awaited in shards": shard(AsyncCollectiveTensor(mine)),
})
texts = []
for tensor in (TwoTensor(whole, whole), shard(TwoTensor(mine, mine)), released, shard(released)):
    try:
        distributed.save(given[0], {"t": tensor})
    except ValueError as error:
        texts.append(str(error))
report(texts)
"""


def test_ranks_save_what_wrappers_wrap(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    done = run_ranks(tmp_path / "ranks", SAVES, path, count=2)
    for texts in done.reports:
        assert len(texts) == 4
        for text, why in zip(
            texts, ["two_tensor.TwoTensor"] * 2 + ["its storage"] * 2, strict=True
        ):
            assert re.search(f"tensor 't' cannot be saved: .*{why}", text), text
    whole = torch.arange(24.0).view(8, 3)
    names = ("float8", "awaited", "awaited in shards")
    assert_same(tensorizer_ops.load(path, verify="all"), dict.fromkeys(names, whole))


def test_copies_of_tensors_without_elements() -> None:
    state = {str(i): torch.empty(0, i, dtype=(torch.float32, torch.int64)[i % 2]) for i in range(9)}
    copied = checkpoint.TensorizerStorageWriter("unused").stage(state)
    assert all(same(copied[name], tensor) for name, tensor in state.items())
