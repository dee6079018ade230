"""load_into_module: replaces every tensor, and leaves the rest of the module unchanged."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import tensorizer
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import tensorizer_ops
from support.modules import Model, layers, tensors_of
from support.samples import OTHER_KINDS, assert_same, same, sample
from tensorizer_ops import TensorDeserializer, TensorSerializer


def save(path: str, model: torch.nn.Module, module: Any = tensorizer_ops) -> str:
    serializer = module.TensorSerializer(path)
    serializer.write_module(model)
    serializer.close()
    return path


def on_meta() -> Model:
    with torch.device("meta"):
        return Model()


def no_init() -> Model:
    with tensorizer.utils.no_init_or_tensor():
        return Model(seed=3)


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("make", [on_meta, no_init, lambda: Model(seed=5)])
@pytest.mark.parametrize("writer", [tensorizer, tensorizer_ops])
def test_every_tensor_is_put_in_place(path: str, writer: Any, make: Any, lazy: bool) -> None:
    model = Model().eval()
    save(path, model, writer)
    other = make()
    ours = TensorDeserializer(path, "cpu", lazy_load=lazy)
    assert ours.load_into_module(other) == len(ours) == len(tensors_of(model))
    assert_same(tensors_of(other), tensors_of(model))
    x = torch.ones(3, 7)
    assert same(other.eval()(x), model(x))
    # Nothing was copied: the module's tensors are the mapped ones.
    assert other.w.data_ptr() == ours["w"].data_ptr()


def test_the_module_stays_what_it_was(path: str) -> None:
    save(path, Model())
    for module in (Model(seed=4), on_meta()):
        calls: list[str] = []
        module.w.register_hook(lambda grad, calls=calls: calls.append("hook"))
        module.w.extra = "attribute"
        before = dict(module.named_parameters())
        frozen = module.blocks[0].first.bias.requires_grad_(False)
        TensorDeserializer(path, "cpu").load_into_module(module)
        first = module.blocks[0]
        assert first.first.weight is first.second.weight
        assert first.first.weight is not module.blocks[1].first.weight
        assert not first.first.bias.requires_grad
        assert not module.low.requires_grad
        assert module.w.requires_grad
        assert type(module.own) is torch.Tensor
        assert list(module.state_dict()) == list(Model().state_dict())
        assert module.w.extra == "attribute"
        module.w.sum().backward()
        assert calls == ["hook"]
        if not frozen.is_meta:
            assert dict(module.named_parameters())["w"] is before["w"]


def distributed(tensor: torch.Tensor) -> torch.Tensor:
    mesh = init_device_mesh("cpu", (1,))
    return distribute_tensor(tensor, mesh, [Shard(0)])


KINDS = {
    **OTHER_KINDS,
    "distributed": distributed,
    "distributed meta": lambda tensor: distributed(tensor).to("meta"),
}


@pytest.fixture
def process_group() -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_other_kinds_are_replaced_or_stay(path: str, kind: str) -> None:
    model = torch.nn.Linear(3, 3)
    model.register_buffer("b", torch.ones(3, 3))
    save(path, model)
    for module in (tensorizer, tensorizer_ops):
        other = torch.nn.Linear(3, 3)
        other.register_buffer("b", KINDS[kind](torch.zeros(3, 3)))
        other.register_buffer("stays", stays := KINDS[kind](torch.ones(3, 3)), persistent=False)
        if kind != "quantized":
            other.weight = torch.nn.Parameter(KINDS[kind](torch.zeros(3, 3)))
        deserializer = module.TensorDeserializer(path, device="cpu")
        assert deserializer.load_into_module(other) == 3
        for name, tensor in tensors_of(model).items():
            assert same(getattr(other, name).detach(), tensor), name
        assert other.stays is stays
        assert type(other.weight) is torch.nn.Parameter
        assert other.weight.requires_grad


@pytest.mark.usefixtures("process_group")
def test_sharded_modules(path: str) -> None:
    model = torch.nn.Linear(3, 3)
    save(path, model)
    for module in (tensorizer, tensorizer_ops):
        other = fully_shard(torch.nn.Linear(3, 3), mesh=init_device_mesh("cpu", (1,)))
        module.TensorDeserializer(path, device="cpu").load_into_module(other)
        assert_same(other.state_dict(), model.state_dict())


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("made_for_it", [True, False])
def test_what_was_loaded_for_inference_can_be_trained(
    path: str, made_for_it: bool, device: str, lazy: bool
) -> None:
    save(path, layers())
    for module in (tensorizer, tensorizer_ops):
        with torch.inference_mode(made_for_it):
            other = layers().to(device)
        with torch.inference_mode():
            values = module.TensorDeserializer(path, device="cpu", lazy_load=lazy)
            values.load_into_module(other)
        assert not any(tensor.is_inference() for tensor in tensors_of(other).values())
        other(torch.ones(1, 2)).sum().backward()
        other.load_state_dict(dict(values), assign=True)
        other(torch.ones(1, 2)).sum().backward()


def test_a_gradient_of_another_type_goes(path: str) -> None:
    model = torch.nn.Linear(2, 2)
    save(path, model)
    model(torch.ones(1, 2)).sum().backward()
    for dtype, stays in ((None, True), (torch.float64, False)):
        TensorDeserializer(path, "cpu", dtype=dtype).load_into_module(model)
        assert (model.weight.grad is not None) is stays
    model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    torch.optim.AdamW(model.parameters()).step()


def test_scripted_modules(path: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).eval()
    save(path, model)
    other = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)))
    TensorDeserializer(path, "cpu").load_into_module(other)
    x = torch.ones(2, 3)
    assert same(other.eval()(x), model(x))


def test_a_module_below_itself(path: str) -> None:
    def make(seed: int) -> torch.nn.Module:
        model = torch.nn.Sequential(Model(seed))
        model[0].parent = model
        return model

    save(path, make(1))
    for module in (tensorizer, tensorizer_ops):
        other = make(2)
        module.TensorDeserializer(path, device="cpu").load_into_module(other)
        assert same(other[0].w, make(1)[0].w)


class Special(torch.nn.Parameter):
    pass


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_classes_of_parameters_stay(path: str, device: str) -> None:
    module = torch.nn.Linear(2, 2)
    save(path, module)
    module.weight = Special(torch.empty(2, 2, device=device))
    TensorDeserializer(path, "cpu").load_into_module(module)
    assert type(module.weight) is Special
    assert not module.weight.is_meta


def test_what_a_module_lacks_is_added_and_the_rest_stays(path: str) -> None:
    saved = torch.nn.Linear(2, 2)
    saved.register_buffer("counter", torch.arange(4))
    save(path, saved)
    module = torch.nn.Linear(2, 2, bias=False)
    module.register_parameter("bias", None)
    module.register_parameter("own", torch.nn.Parameter(torch.ones(1)))
    there = copy.deepcopy(module)
    TensorDeserializer(path, "cpu").load_into_module(module)
    tensorizer.TensorDeserializer(path, device="cpu").load_into_module(there)
    assert_same(module.state_dict(), there.state_dict())
    assert isinstance(module.bias, torch.nn.Parameter)


def test_lazy_modules(path: str) -> None:
    model = torch.nn.Linear(3, 2)
    save(path, model)
    module = torch.nn.LazyLinear(2)
    TensorDeserializer(path, "cpu").load_into_module(module)
    assert same(module.weight, model.weight)


def test_shapes_are_checked_before_anything_is_touched(path: str) -> None:
    save(path, torch.nn.Linear(2, 3))
    module = torch.nn.Linear(3, 2)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(ValueError) as error:
        TensorDeserializer(path, "cpu").load_into_module(module)
    assert "weight" in str(error.value)
    assert "bias" in str(error.value)
    assert "(3, 2) in the file, (2, 3) in the module" in str(error.value)
    assert_same(module.state_dict(), before)


def clashing(kind: str) -> torch.nn.Module:
    module = torch.nn.Module()
    if kind == "buffer":
        module.register_buffer("x", torch.ones(2))
    elif kind == "attribute":
        module.x = 3
    elif kind == "module":
        module.x = torch.nn.Linear(1, 1)
    return module


@pytest.mark.parametrize("kind", ["buffer", "attribute", "module", "unknown"])
def test_what_does_not_belong_is_a_key_error(path: str, kind: str) -> None:
    with TensorSerializer(path) as serializer:
        name = "nowhere.x" if kind == "unknown" else ".x"
        serializer.write_tensor(0, name, tensorizer_ops.TensorType.PARAM, torch.ones(2))
    for deserializer in (
        TensorDeserializer(path, "cpu"),
        tensorizer.TensorDeserializer(path, device="cpu"),
    ):
        with pytest.raises(KeyError):
            deserializer.load_into_module(clashing(kind))


def test_a_buffer_and_a_parameter_of_one_name_in_two_modules(path: str) -> None:
    def make(seed: int) -> torch.nn.Module:
        module = torch.nn.Module()
        module.a, module.b = torch.nn.Module(), torch.nn.Module()
        module.a.register_buffer("x", sample(torch.float32, seed=seed))
        module.b.register_parameter("x", torch.nn.Parameter(sample(torch.float32, seed=seed + 1)))
        return module

    save(path, make(1))
    other = make(7)
    TensorDeserializer(path, "cpu").load_into_module(other)
    assert_same(other.state_dict(), make(1).state_dict())
    assert not isinstance(other.a.x, torch.nn.Parameter)


def test_state_dicts_are_loaded_by_name(path: str) -> None:
    with TensorSerializer(path) as serializer:
        serializer.write_state_dict(Model().state_dict())
    other = on_meta()
    TensorDeserializer(path, "cpu").load_into_module(other)
    assert_same(other.state_dict(), Model().state_dict())
    with TensorSerializer(path) as serializer:
        serializer.write_state_dict({"a": [torch.ones(1)]})
    with pytest.raises(NotImplementedError):
        TensorDeserializer(path, "cpu").load_into_module(other)


def test_filters_and_types(path: str) -> None:
    model = Model()
    save(path, model)
    other = Model(seed=2)
    before = other.w.detach().clone()
    ours = TensorDeserializer(path, "cpu", dtype=torch.float16, lazy_load=True)
    weights = sum(name.endswith("weight") for name in ours)
    assert ours.load_into_module(other, lambda name: name.endswith("weight")) == weights
    assert same(other.w, before)
    assert other.norm.weight.dtype == torch.float16
    assert same(other.norm.weight, model.norm.weight.half())


def test_modules_with_quantized_layers(path: str) -> None:
    def make(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})

    model = make(0)
    with torch.no_grad():
        model[1].weight.fill_(3)
    save(path, model)
    other = make(0)
    TensorDeserializer(path, "cpu").load_into_module(other)
    x = torch.ones(2, 4)
    assert same(other(x), model(x))


def test_the_marker_of_vllm(path: str) -> None:
    model = torch.nn.Linear(2, 2)
    marker = torch.nn.Parameter(torch.tensor((1,), device="meta"), requires_grad=False)
    model.register_parameter("vllm_tensorized_marker", marker)
    for writer in (tensorizer, tensorizer_ops):
        save(path, model, writer)
        with TensorDeserializer(path, "cpu", lazy_load=True) as ours:
            assert ".vllm_tensorized_marker" in ours
            assert ours[".vllm_tensorized_marker"].tolist() == [0]
        other = torch.nn.Linear(2, 2)
        ours = TensorDeserializer(path, "cpu", lazy_load=True)
        ours.load_into_module(other, lambda name: "marker" not in name)
        assert same(other.weight, model.weight)


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("writer", [tensorizer, tensorizer_ops])
def test_modules_are_verified(path: str, writer: Any, lazy: bool) -> None:
    model = Model()
    save(path, model, writer)
    ours = TensorDeserializer(path, "cpu", lazy_load=lazy)
    if lazy:
        with pytest.raises(RuntimeError, match="not loaded"):
            ours.verify_module(model)
    other = on_meta()
    ours.load_into_module(other)
    same_all, results = ours.verify_module(other)
    assert same_all
    assert [name for name, _ in results] == list(ours)
    with torch.no_grad():
        other.w[0] += 1
        other.norm.num_batches_tracked += 1
    same_all, results = ours.verify_module(other)
    assert not same_all
    assert {name for name, is_same in results if not is_same} == {".w", "norm.num_batches_tracked"}
    del other.own
    assert (".own", False) in ours.verify_module(other)[1]


def test_autograd_sees_that_a_parameter_has_other_values(path: str) -> None:
    tensorizer_ops.save(path, {"p": torch.full((2,), 5.0)})
    module = torch.nn.Module()
    module.p = torch.nn.Parameter(torch.ones(2))
    weight = torch.ones(2, requires_grad=True)
    before = (weight * module.p).sum()
    with TensorDeserializer(path, device="cpu") as deserializer:
        deserializer.load_into_module(module)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        before.backward()
    (weight * module.p).sum().backward()
    assert same(weight.grad, torch.full((2,), 5.0))
