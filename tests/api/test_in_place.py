"""Changes of weights that a loader puts in place leave what whole weights would."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from tensorizer_ops._versions.elements import NotInPlace, changed_weights, write_changes
from tensorizer_ops._versions.in_place import InPlace

Weights = Iterable[tuple[str, torch.Tensor]]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fused = torch.nn.Parameter(torch.zeros(64, 64))
        self.score = torch.nn.Parameter(torch.zeros(1, 64))
        self.tied = self.score


def fuse(model: Model, weights: Weights) -> None:
    """Two parts, whose elements lie among one another, and a part that is padded."""
    for name, weight in weights:
        columns = {"a": slice(0, 24), "b": slice(24, 48)}.get(name)
        if columns:
            model.fused.data[:60, columns].copy_(weight[:60])
            model.fused.data[60:, columns].fill_(0)


def make_of_others(model: Model, weights: Weights) -> None:
    """What other weights give is written, of which one may not have changed."""
    head = torch.full((64, 24), 7.0)
    for name, weight in weights:
        if name == "a":
            head.copy_(weight)
        elif name == "b":
            model.fused.data[:, :24].copy_(weight)
    model.score.data[0, :24].copy_(head[3] - head[5])


def wait_for_the_other(model: Model, weights: Weights) -> None:
    waiting = {}
    for name, weight in weights:
        waiting[name] = weight
        if {"a", "b"} <= waiting.keys():
            model.fused.data[:, :48].copy_(torch.cat([waiting.pop("a"), waiting.pop("b")], 1))


def write_before(model: Model, weights: Weights) -> None:
    model.fused.data.fill_(0)
    for name, weight in weights:
        if name == "a":
            model.fused.data[:, :24].copy_(weight)


def copy_twice(model: Model, weights: Weights) -> None:
    for name, weight in weights:
        for _ in range(2):
            if name == "row":
                model.get_parameter("tied").data.copy_(weight)


def tie(model: Model, weights: Weights) -> None:
    for name, weight in weights:
        if name in ("row", "other_row"):
            model.score.data.copy_(weight)


def add_one(model: Model, weights: Weights) -> None:
    for name, weight in weights:
        if name == "a":
            model.fused.data[:, :24].copy_(weight)
            model.fused.data[:, 10:20].add_(1)


def one_over_another(model: Model, weights: Weights) -> None:
    for name, weight in weights:
        if name in ("a", "b"):
            model.fused.data[:, :24].copy_(weight)


def load_on_a_thread(model: Model, weights: Weights) -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(make_of_others, model, weights).result()


STAYS = [fuse, make_of_others, wait_for_the_other, write_before, copy_twice, load_on_a_thread]
REFUSED = [tie, add_one, one_over_another]


@pytest.mark.parametrize("load", [*STAYS, *REFUSED])
@pytest.mark.parametrize("changed", [["a"], ["b"], ["a", "b"], ["row"], ["row", "other_row"]])
def test_what_loaders_leave(
    tmp_path: Path, load: Callable[[Model, Weights], None], changed: list[str]
) -> None:
    old = {name: torch.randn(64, 24) for name in ("a", "b")}
    old["other_row"] = old["row"] = torch.randn(1, 64)
    new = {name: tensor.clone() for name, tensor in old.items()}
    for place, name in enumerate(changed):
        new[name][0, place] += 1
    for name, tensors in (("old", old), ("new", new)):
        tensorizer_ops.save(tmp_path / name, tensors)
    write_changes(tmp_path / "old", tmp_path / "new", tmp_path / "changes")
    model, expected = Model(), Model()
    load(model, old.items())
    load(expected, old.items())
    load(expected, new.items())
    refused = False
    try:
        with torch.no_grad(), InPlace(model):
            load(model, changed_weights(tmp_path / "changes", tmp_path / "new"))
    except NotInPlace:
        refused = True
        load(model, new.items())
    assert refused == (load in REFUSED)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
