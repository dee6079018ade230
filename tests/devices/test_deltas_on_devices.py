"""Deltas of tensors on a device: they are compared and changed where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support import sim_device
from support.samples import same
from tensorizer_ops import errors

State = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with sim_device.fresh():
        yield
        assert not sim_device.violations()


@pytest.fixture
def base() -> State:
    """More than one block of 1 MiB, and kinds of tensors that are copied in other ways."""
    torch.manual_seed(1)
    return {
        "large": torch.randn(1_200_000).bfloat16(),
        "matrix": torch.randn(300, 200),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 4),
        "all of it": torch.randn(1000),
    }


@pytest.fixture
def new(base: State) -> State:
    large = torch.where(torch.rand(1_200_000) < 0.03, base["large"] * 1.01, base["large"])
    return {**base, "large": large, "scalar": torch.tensor(4), "all of it": torch.randn(1000)}


@pytest.fixture
def delta(tmp_path: Path, base: State, new: State) -> Path:
    tensorizer_ops.save(tmp_path / "base", base)
    tensorizer_ops.save(tmp_path / "new", new)
    tensorizer_ops.delta(tmp_path / "base", tmp_path / "new", tmp_path / "delta")
    return tmp_path / "delta"


def on_device(state: State) -> State:
    """Some of it on another device, some on the CPU, and a matrix whose rows are columns."""
    places = {"large": "sim:0", "matrix": "sim:1", "all of it": "sim:1", "empty": "sim:0"}
    moved = {name: tensor.to(places.get(name, "cpu"), copy=True) for name, tensor in state.items()}
    moved["matrix"] = state["matrix"].t().contiguous().to("sim:1").t()
    return moved


@pytest.mark.parametrize("threads", [1, 4])
def test_a_delta_is_applied_where_tensors_are(
    base: State, new: State, delta: Path, threads: int
) -> None:
    state = on_device(base)
    memory = {name: tensor.data_ptr() for name, tensor in state.items()}
    for _ in range(2):  # a second time does nothing
        tensorizer_ops.apply(delta, state, threads=threads)
        for name, tensor in state.items():
            assert tensor.data_ptr() == memory[name]
            assert same(tensor.cpu(), new[name])


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state["large"][1_100_000:1_100_001].fill_(7),
        lambda state: state.update(large=state["large"].float().to("sim")),
    ],
)
def test_another_base_stays_as_it_is(
    base: State, delta: Path, damage: Callable[[State], None]
) -> None:
    state = on_device(base)
    damage(state)
    before = {name: tensor.cpu().clone() for name, tensor in state.items()}
    with pytest.raises(errors.InvalidArgument, match="not the model that it was made"):
        tensorizer_ops.apply(delta, state)
    for name, tensor in state.items():
        assert same(tensor.cpu(), before[name])


def test_ties_on_a_device(tmp_path: Path, base: State, new: State) -> None:
    for name, state in {"base": base, "new": new}.items():
        tensorizer_ops.save(tmp_path / name, dict.fromkeys(("a", "b"), state["large"]))
    tensorizer_ops.delta(tmp_path / "base", tmp_path / "new", tmp_path / "delta")
    tied = dict.fromkeys(("a", "b"), base["large"].to("sim"))
    tensorizer_ops.apply(tmp_path / "delta", tied)
    assert same(tied["a"].cpu(), new["large"])
