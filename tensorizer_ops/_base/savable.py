"""The door that all saves pass: checks the tensors, and says what to do with what cannot be saved.

Torch's own errors would print all of the tensors.
"""

from __future__ import annotations

import enum
import fractions
import functools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.masked import MaskedTensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import is_unicode, kind_of, not_unicode, wrong
from tensorizer_ops._base.internals import held_memory, lacks_memory
from tensorizer_ops._base.memory import is_plain, plain_parts


def as_dict(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if isinstance(tensors, torch.nn.Module):
        raise wrong("tensors", tensors, "a dict of tensors: give its state_dict()")
    if not isinstance(tensors, Mapping):
        raise wrong("tensors", tensors, "a dict of tensors, such as a state_dict()")
    return dict(tensors)


def refuse_other_metadata(metadata: Mapping[str, str] | None) -> None:
    """Raise for metadata that is not text."""
    for key, value in (metadata or {}).items():
        if not isinstance(key, str):
            raise TypeError(f"metadata has a key that is {kind_of(key)}, and must be str")
        if not isinstance(value, str):
            raise TypeError(
                f"metadata[{key!r}] is {kind_of(value)}, and must be str, int, float or bool"
            )
        if not is_unicode(key + value):
            raise not_unicode(f"metadata[{key!r}]")


def plain_tensors(
    names: Iterable[str],
    tensors: Iterable[torch.Tensor],
    *,
    shards: bool = False,
    traced: bool = False,
    done: str = "saved",
) -> list[torch.Tensor]:
    """Return the tensors; of each subclass that passes operators on, the tensor that gets them.

    Raise for a value that is not a tensor, one without values, and a name that is not a text. What
    is left to the operators is what they refuse by name: other tensors without memory.

    Args:
        names: the names of the tensors.
        tensors: what is to be saved.
        shards: whether to leave a tensor of which this process has a part as it is.
        traced: whether a compiler records what is done with the tensors.
        done: what is to be done with the tensors, for messages.
    """
    plain = []
    for name, tensor in zip(names, tensors, strict=True):
        if not isinstance(name, str):
            raise errors.InvalidArgument(
                f"tensors has a name that is {kind_of(name)}, and must be str",
            )
        if not is_unicode(name):
            raise not_unicode(f"tensor {name!r} cannot be {done}: its name")
        if not isinstance(tensor, torch.Tensor):
            raise _unusable(name, done, f"{kind_of(tensor)}{_advice(name, tensor)}")
        refuse_uninitialized(name, tensor, done)
        plain.append(tensor if traced else _plain(name, tensor, shards, done))
    return plain


def _plain(name: str, tensor: torch.Tensor, shards: bool, done: str) -> torch.Tensor:
    if not is_dispatched(tensor) or tensor.is_nested:
        return tensor
    if is_distributed(tensor):
        if shards:
            return tensor
        advice = "save with tensorizer_ops.distributed.save() on all ranks"
        if done != "saved":
            advice = "give its full_tensor()"
        raise _unusable(name, done, f"a DTensor, of which each rank has a part: {advice}")
    if isinstance(tensor, FakeTensor):
        raise _unusable(name, done, "a FakeTensor, which has no values")
    kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
    received: list[torch.Tensor] = []
    problem: Exception | None = None
    try:
        parts = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else ()
        if len(parts) < 2:
            received = _Receiver.received(tensor)
    except Exception as error:  # of the code of the subclass
        problem, parts = error, ()
    if len(parts) > 1 or len(received) > 1:
        advice = "save each of them under a name"
        if kind.startswith("torchao."):
            advice = (
                "save what torchao.prototype.safetensors.safetensors_support."
                "flatten_tensor_state_dict() returns"
            )
        raise _unusable(name, done, f"{kind}, which is made of several tensors: {advice}")
    if not received:
        raise _unusable(
            name, done, f"{kind}, which has no elements in memory: give the tensors in it names"
        ) from problem
    if (received[0].shape, received[0].dtype) != (tensor.shape, tensor.dtype):
        raise _unusable(
            name, done, f"{kind}, which is made of a tensor of another shape or type: give that one"
        )
    return received[0]


def only_wraps(tensor: torch.Tensor) -> bool:
    """Return whether the elements of a tensor mean what they are, and not, such as, times a scale.

    Nothing is known of classes that change what torch does with a tensor, and of those whose
    instances have tensors, floating-point numbers or objects of a program beside the elements.
    """
    kind = type(tensor)
    if kind in (torch.Tensor, torch.nn.Parameter):  # what these have is not seen by torch
        return True
    known = {torch.nn.Parameter, *filter(None, map(_loaded, _KNOWN))}
    own = [each for each in kind.__mro__ if each not in known | {*torch.Tensor.__mro__}]
    if any(_changes_tensors(each) for each in own):
        return False
    if is_traceable_wrapper_subclass(tensor):  # one of those that are known
        parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        return all(only_wraps(part) for part in parts if isinstance(part, torch.Tensor))
    slots = [
        getattr(tensor, name, None)
        for each in own
        for name, value in vars(each).items()
        if isinstance(value, types.MemberDescriptorType)
    ]
    return all(map(_is_harmless, tree_leaves([vars(tensor), slots])))


def _is_harmless(beside: object) -> bool:
    """Return whether an instance may have this beside its elements.

    Code, such as a loader, may have numbers and modules that it needs.
    """
    if not isinstance(beside, _CODE):
        return isinstance(beside, _HARMLESS)
    found, seen = [beside], {id(beside)}
    for code in found:
        for each in tree_leaves(_kept_by(code)):
            if isinstance(each, _CODE):
                found += [] if id(each) in seen else [each]
                seen.add(id(each))
            elif not isinstance(each, (*_HARMLESS, float, torch.nn.Module)):
                return False
    return True


def _kept_by(code: Any) -> list[object]:
    """Return what a function, a method or a partial call has, with which it can compute."""
    if isinstance(code, functools.partial):
        return [code.func, code.args, code.keywords, vars(code)]
    if not isinstance(code, types.FunctionType):
        return [getattr(code, "__func__", None), code.__self__]
    cells = [cell.cell_contents for cell in code.__closure__ or () if cell != types.CellType()]
    return [cells, code.__defaults__, code.__kwdefaults__, vars(code)]


def _changes_tensors(kind: type) -> bool:
    """Return whether a class has something else in place of what tensors have, or a scale."""
    return any(
        (hasattr(torch.Tensor, name) or not _is_harmless_in_class(value))
        and value is not torch._C._disabled_torch_function_impl
        for name, value in vars(kind).items()
        if name not in _OF_EVERY_CLASS
    )


def _is_harmless_in_class(value: object) -> bool:
    """Return whether it is code, such as a property, or what instances may have, too."""
    return hasattr(type(value), "__get__") or all(map(_is_harmless, tree_leaves(value)))


def _loaded(place: tuple[str, str]) -> type | None:
    """Return a class if its module has been imported, because that is slow."""
    module, name = place
    found: type | None = getattr(sys.modules.get(module), name, None)
    return found


# Classes that change what torch does with tensors, but not what their elements mean.
_KNOWN = (
    ("torch.nn.parameter", "UninitializedTensorMixin"),
    ("torch.distributed.tensor", "DTensor"),
    ("torch.distributed._functional_collectives", "AsyncCollectiveTensor"),
    ("vllm.model_executor.parameter", "BasevLLMParameter"),
)
# Attributes that a class may have: how a tensor is made, copied and shown.
_OF_EVERY_CLASS = frozenset(
    [
        *("__annotations__", "__copy__", "__deepcopy__", "__dict__", "__dir__", "__doc__"),
        *("__format__", "__getstate__", "__hash__", "__init__", "__init_subclass__", "__module__"),
        *("__new__", "__reduce__", "__reduce_ex__", "__repr__", "__setstate__", "__str__"),
        *("__subclasshook__", "__weakref__"),
        # What Python keeps of generic, abstract and annotated classes.
        *("__abstractmethods__", "__annotations_cache__", "__orig_bases__", "__parameters__"),
        *("__type_params__", "_abc_impl"),
    ]
)
# What an instance may have beside its elements, such as where a loader is to put them.
_HARMLESS = (
    *(type(None), bool, int, str, bytes, range, slice, enum.Enum, fractions.Fraction, type),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, types.ModuleType),
)
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)


class _Receiver(TorchDispatchMode):
    """Receives the plain tensors that a subclass passes an operator on to, and runs nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._received: list[torch.Tensor] = []

    @classmethod
    def received(cls, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return what the subclass passes on for one tensor."""
        receiver = cls()
        with receiver, torch.no_grad():
            torch.ops.tensorizer.save_tensors("", [""], [tensor])
        return receiver._received

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.ops.tensorizer.save_tensors.default:
            return func(*args, **(kwargs or {}))
        if any(is_dispatched(tensor) for tensor in args[2]):
            return NotImplemented  # then it is the turn of the subclass
        self._received += args[2]
        return None


def is_dispatched(tensor: torch.Tensor) -> bool:
    """Return whether a subclass decides what operators do with a tensor."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):  # faster than asking torch
        return False
    keys = torch._C._dispatch_keys(tensor)
    return keys.has(torch._C.DispatchKey.Python)


def plain_tensor(name: str, tensor: torch.Tensor, done: str = "saved") -> torch.Tensor:
    """Return a tensor, or the one that it passes operators on to; raise if it has no values."""
    plain = plain_tensors([name], [tensor], done=done)
    with held([name], plain, done) as (own,):
        if own.is_meta:
            raise _unusable(name, done, "on the meta device, and has no values")
        return own


@contextmanager
def held(
    names: Iterable[str], tensors: Iterable[torch.Tensor], done: str = "saved"
) -> Iterator[list[torch.Tensor]]:
    """Give other tensors over the memory of plain ones, which stays in place until the block ends.

    No other way is safe to copy what a program gives: its other threads may resize or replace the
    memory, and the methods of its subclasses return what they like. Raise for a tensor without
    memory.
    """
    with held_memory(list(tensors)) as own:
        for name, tensor in zip(names, own, strict=True):
            refuse_without_memory(name, tensor, done)
        yield own


def local_tensor(name: str, tensor: Any) -> torch.Tensor:
    """Return what :func:`plain_tensor` does of the part that this process has of a tensor."""
    return plain_tensor(name, tensor.to_local() if is_distributed(tensor) else tensor)


def fillable(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return another tensor over the memory of a plain one, and a subclass of others itself.

    Raise for a tensor into which torch cannot copy values, or not into all that it is made of. A
    tensor on the meta device is no such.
    """
    refuse_uninitialized(name, tensor, "filled")
    if isinstance(tensor, MaskedTensor):  # whose detach() is a copy
        raise _unusable(name, "filled", "masked: fill what its get_data() returns")
    for part in [tensor] if tensor.is_nested else plain_parts(tensor):
        if isinstance(part, FakeTensor):
            raise _unusable(name, "filled", "a FakeTensor, which has no values")
        # A subclass with memory of its own may copy the values to anywhere else.
        if part.is_nested or not is_dispatched(part) or is_plain(part):
            refuse_without_memory(name, part, "filled")
    with held_memory([tensor]) as (own,):
        return own


def refuse_without_memory(name: str, tensor: torch.Tensor, done: str = "saved") -> None:
    """Raise for a tensor whose elements are not in memory of its own, as the operators do."""
    refuse_uninitialized(name, tensor, done)
    if why := lacks_memory(tensor):
        raise errors.InvalidArgument(f"tensor {name!r} cannot be {done}: {why}")


def refuse_uninitialized(name: str, tensor: torch.Tensor, done: str = "saved") -> None:
    """Raise for an uninitialized tensor of a lazy module, which the ops would take for empty."""
    if is_lazy(tensor):
        raise errors.InvalidArgument(
            f"tensor {name!r} cannot be {done}: it is not initialized until its module runs",
        )


def _unusable(name: str, done: str, what: str) -> errors.InvalidArgument:
    return errors.InvalidArgument(f"tensor {name!r} cannot be {done}: it is {what}")


def _advice(name: str, value: object) -> str:
    """Return what to do with a value that is not a tensor; nothing if there is no advice for it."""
    if isinstance(value, torch.nn.Module):
        return ", a module: save its state_dict()"
    if isinstance(value, Mapping):
        return (
            f", as in a nested checkpoint: save that dict alone, or give what is in it names such "
            f"as {name + '.KEY'!r}"
        )
    if isinstance(value, str):
        return ": give texts as metadata="
    if isinstance(value, list | tuple) and any(isinstance(each, torch.Tensor) for each in value):
        return f": give each of its tensors a name, such as {name + '.0'!r}"
    if isinstance(value, int | float | complex | list | tuple):
        return ": save torch.as_tensor() of it, or give its text as metadata="
    if hasattr(value, "__array_interface__"):
        return ": save torch.as_tensor() of it"
    return ": leave it out" if value is None else ""


def is_distributed(tensor: torch.Tensor) -> bool:
    distributed = sys.modules.get("torch.distributed.tensor")  # which is slow to import
    return distributed is not None and isinstance(tensor, distributed.DTensor)
