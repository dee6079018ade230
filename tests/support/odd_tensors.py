"""Tensors that are not what they seem: subclasses, wrappers, tensors without memory or values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Replicate, init_device_mesh
from torch.masked import masked_tensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map_only

from support.samples import freed

# What a tensor is given to: a function, the tensor, and its elements if it has any.
Run = Callable[[Any, "torch.Tensor | None"], None]


class Wrapper(torch.Tensor):
    """Has no memory, and passes each operator on to the one tensor that it wraps."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: Any) -> Wrapper:
        return Wrapper(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = tree_map_only(cls, lambda each: each.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, cls, func(*plain[0], **plain[1]))


class Scaled(Wrapper):
    """Has a scale beside the tensor that it wraps."""

    scale = 2.0

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["inner"], self.scale


class Shell(Wrapper):
    """Has no memory, and can be detached."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].inner)
        raise NotImplementedError(f"Shell has no {func}")


class Named(torch.Tensor):
    """A subclass with memory of its own."""


class Liar(torch.Tensor):
    """A subclass with memory of its own, whose methods return what they like."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        lies = (torch.Tensor.detach, torch.Tensor.clone, torch.Tensor.contiguous, torch.Tensor.cpu)
        if func in lies:
            return torch.zeros(3)
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[misc]


class Copied(torch.Tensor):
    """A subclass with memory of its own, which detach() copies."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
            if func is torch.ops.aten.detach.default:
                return args[0].as_subclass(torch.Tensor).clone()
            return func(*args, **(kwargs or {}))


def _cut_short(elements: torch.Tensor, size: int) -> torch.Tensor:
    """Returns a tensor that lies by columns, and of which a part is gone."""
    columns = elements.t().contiguous().t()
    columns.untyped_storage().resize_(size)
    return columns


def _once(make: Callable[[torch.Tensor], Any], has_elements: bool = False) -> Any:
    def give(elements: torch.Tensor, run: Run) -> None:
        run(make(elements), elements if has_elements else None)

    return give


def _batched(elements: torch.Tensor, run: Run) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        run(x, None)
        return x

    torch.vmap(body)(torch.stack([elements, elements]))


def _zeros(elements: torch.Tensor, run: Run) -> None:
    zeros = torch._efficientzerotensor(elements.shape, dtype=elements.dtype)  # type: ignore[attr-defined]
    run(zeros, torch.zeros_like(elements))


def _functional(elements: torch.Tensor) -> Any:
    with FunctionalTensorMode():
        return FunctionalTensor.to_functional(elements)


def _float8(elements: torch.Tensor) -> Any:
    from torchao.float8.config import ScalingType  # noqa: F401  (fails without torchao)
    from torchao.float8.float8_training_tensor import LinearMMConfig
    from torchao.float8.fsdp_utils import WeightWithDynamicFloat8CastTensor

    return WeightWithDynamicFloat8CastTensor(elements, LinearMMConfig(), torch.float8_e4m3fn)


def _quantized_by_torchao(elements: torch.Tensor) -> Any:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    layer = torch.nn.Linear(elements.shape[-1], 4)
    quantize_(layer, Int8WeightOnlyConfig(version=2))
    return layer.weight


def join_a_group() -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())


def _distributed(elements: Any) -> Any:
    join_a_group()
    return DTensor.from_local(elements, init_device_mesh("cpu", (1,)), [Replicate()])


def _two(elements: torch.Tensor) -> TwoTensor:
    return TwoTensor(torch.ones_like(elements), elements)


def _jagged(elements: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([elements, elements[:1]], layout=torch.jagged)


def _strided_nested(elements: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([elements, elements[:1]])


def _masked(elements: torch.Tensor) -> Any:
    return masked_tensor(elements.float(), torch.ones(elements.shape, dtype=torch.bool))


def _lazy(_: torch.Tensor) -> torch.Tensor:
    return torch.nn.LazyLinear(3).weight


TENSORS: dict[str, Callable[[torch.Tensor, Run], None]] = {
    "plain": _once(torch.clone, True),
    "subclass with memory": _once(lambda x: x.clone().as_subclass(Named), True),
    "liar": _once(lambda x: x.clone().as_subclass(Liar), True),
    "detach is a copy": _once(lambda x: torch.Tensor._make_subclass(Copied, x.clone()), True),
    "released storage, by columns": _once(lambda x: _cut_short(x, 0)),
    "truncated storage, by columns": _once(lambda x: _cut_short(x, 16)),
    "two tensors": _once(_two),
    "wrapper": _once(lambda x: Wrapper(x.clone()), True),
    "wrapper of a wrapper": _once(lambda x: Wrapper(Wrapper(x.clone())), True),
    "wrapper of two tensors": _once(lambda x: Wrapper(_two(x))),
    "shell": _once(Shell),
    "async collective": _once(lambda x: AsyncCollectiveTensor(x.clone()), True),
    "released storage": _once(lambda x: freed(x.clone())),
    "fake": _once(lambda x: FakeTensorMode().from_tensor(x)),
    "functional": _once(lambda x: torch._to_functional_tensor(x.clone()), True),
    "functional in Python": _once(_functional),
    "batched": _batched,
    "jagged": _once(_jagged),
    "strided nested": _once(_strided_nested),
    "masked": _once(_masked),
    "sparse": _once(lambda x: x.float().to_sparse()),
    "sparse rows": _once(lambda x: x.float().reshape(-1, 1).to_sparse_csr()),
    "mkldnn": _once(lambda x: x.float().to_mkldnn()),
    "quantized": _once(lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8)),
    "meta": _once(lambda x: x.to("meta")),
    "zeros without memory": _zeros,
    "lazy": _once(_lazy),
    "torchao float8": _once(lambda x: _float8(x.clone()), True),
    "torchao int8": _once(_quantized_by_torchao),
    "distributed": _once(lambda x: _distributed(x.clone()), True),
    "distributed wrapper": _once(lambda x: _distributed(Wrapper(x.clone())), True),
    "distributed two tensors": _once(lambda x: _distributed(_two(x))),
    "distributed float8": _once(lambda x: _distributed(_float8(x.clone())), True),
    "distributed released": _once(lambda x: freed_local(_distributed(x.clone()))),
}
NEED_TORCHAO = {name for name in TENSORS if "torchao" in name or "float8" in name}


def freed_local(tensor: Any) -> Any:
    freed(tensor._local_tensor)
    return tensor
