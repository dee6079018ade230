"""Loads into tied tensors: they stay tied, unless the file has different values for them."""

from __future__ import annotations

from typing import Any

import pytest
import tensorizer
import torch

import tensorizer_ops
from support.modules import layers, tensors_of
from support.samples import assert_same, freed, same
from tensorizer_ops import TensorDeserializer


def save(path: str, model: torch.nn.Module, module: Any = tensorizer_ops) -> str:
    serializer = module.TensorSerializer(path)
    serializer.write_module(model)
    serializer.close()
    return path


def test_ties_by_memory_stay(path: str) -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
    model["b"].weight = torch.nn.Parameter(model["a"].weight.data)
    assert model["a"].weight is not model["b"].weight
    with torch.no_grad():
        model["a"].weight[0, 0] = torch.nan
    save(path, model)
    ours = TensorDeserializer(path, "cpu")
    ours.load_into_module(model)
    assert model["a"].weight.data_ptr() == model["b"].weight.data_ptr()
    assert same(model["b"].weight, ours["a.weight"])


def share_parameters(model: torch.nn.Module) -> None:
    for layer in model[1:]:
        layer.weight, layer.bias = model[0].weight, model[0].bias


def share_memory(model: torch.nn.Module) -> None:
    memory = torch.zeros(2, 2)
    for layer in model:
        layer.weight = torch.nn.Parameter(memory)
        layer.b = memory[0].expand(2)


def take_memory(model: torch.nn.Module) -> None:
    for tensor in tensors_of(model).values():
        freed(tensor)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("make_placeholders", [share_parameters, share_memory, take_memory])
def test_what_differs_in_the_file_is_not_tied(
    path: str, make_placeholders: Any, device: str
) -> None:
    model = layers()
    save(path, model)
    for module in (tensorizer, tensorizer_ops):
        other = layers().to(device)
        make_placeholders(other)
        other[2].weight.requires_grad_(False)
        module.TensorDeserializer(path, device="cpu").load_into_module(other)
        assert_same(tensors_of(other), tensors_of(model))
    assert not other[2].weight.requires_grad


def test_conjugate_views_are_not_tied_to_what_they_view(path: str) -> None:
    model = torch.nn.Module()
    model.x = torch.nn.Parameter(torch.tensor([1 + 2j, 3 - 4j]))
    model.register_buffer("mirrored", model.x.detach().conj())
    before = model.mirrored.clone()
    tensorizer_ops.save(path, {"x": torch.tensor([5j, 6j])})
    with TensorDeserializer(path, device="cpu") as deserializer:
        deserializer.load_into_module(model)
    assert model.x.tolist() == [5j, 6j]
    assert torch.equal(model.mirrored, before)
