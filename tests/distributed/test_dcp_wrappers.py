"""Checkpoints of tensors that wrap others, and have no memory of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.masked import masked_tensor
from torch.testing._internal.two_tensor import TwoTensor

from local_servers.web import nginx
from support.ranks import run_ranks
from support.samples import freed, same
from tensorizer_ops import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.mark.parametrize("verify", ["none", "all"])
def test_wrappers_are_filled(tmp_path: Path, verify: str) -> None:
    saved = {name: torch.rand(3, 500) for name in ("one", "two", "plain")}
    with nginx(tmp_path) as web:
        checkpoint.save(dict(saved), checkpoint_id=web.root / "c")
        for place in (web.root / "c", web.url("c")):
            one = AsyncCollectiveTensor(torch.zeros(3, 500))
            two = TwoTensor(torch.zeros(3, 500), torch.zeros(3, 500))
            plain = torch.zeros(3, 500)
            checkpoint.load(
                {"one": one, "two": two, "plain": plain},
                checkpoint_id=place,
                storage_reader=checkpoint.TensorizerStorageReader(verify=verify),
            )
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
checkpoint.save(state, checkpoint_id=given[0] + "/now")
checkpoint.async_save(state, checkpoint_id=given[0] + "/then").result()
step(model, optimizer)
expected = weights(model)
for when in ("now", "then"):
    model, optimizer = build(1)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    checkpoint.load(state, checkpoint_id=f"{given[0]}/{when}")
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    step(model, optimizer)
    assert weights(model) == expected
report("trained")
"""


def test_training_in_float8_goes_on(tmp_path: Path) -> None:
    done = run_ranks(tmp_path / "ranks", FLOAT8, tmp_path, count=2)
    assert done.reports == ["trained", "trained"]


RAGGED = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (freed(torch.ones(2, 2)), "has a storage that is too small for its shape"),
        (TwoTensor(torch.ones(2, 2), freed(torch.ones(2, 2))), "has a storage that is too small"),
        (torch._efficientzerotensor((2, 2)), "stands for zeros, and has no memory"),
        (FakeTensorMode().from_tensor(torch.ones(2, 2)), "is a FakeTensor, and has no values"),
        (torch.eye(2).to_sparse(), r"is sparse: to_dense\(\)"),
        (
            masked_tensor(torch.ones(2, 2), torch.eye(2, dtype=torch.bool)),
            r"is masked: use its get",
        ),
        (RAGGED, r"is nested, and has no shape: unbind\(\)"),
    ],
    ids=["released", "released inside", "zeros", "fake", "sparse", "masked", "jagged"],
)
def test_tensors_without_values_of_their_own(
    tmp_path: Path, tensor: torch.Tensor, text: str
) -> None:
    where = rf"state\['x'\]\['y'\] {text}"
    state = {"x": {"y": tensor}}
    for save in (checkpoint.save_checkpoint, checkpoint.save_checkpoint_async):
        with pytest.raises(ValueError, match=where):
            save(tmp_path / "c.tensors", state)
    folder = tmp_path / "c"
    with pytest.raises((CheckpointException, ValueError), match=where):
        checkpoint.async_save(state, checkpoint_id=folder).result()
    with pytest.raises(CheckpointException, match=where):
        checkpoint.save(state, checkpoint_id=folder)
    checkpoint.save({"x": {"y": torch.ones(2, 2)}}, checkpoint_id=folder)
    with pytest.raises((CheckpointException, ValueError), match=rf"state\['x.*{text}"):
        checkpoint.load(state, checkpoint_id=folder)
