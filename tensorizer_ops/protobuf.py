"""Tensors and modules as protobuf messages.

The messages are those of :mod:`tensorizer_ops.tensors_pb2`, and need Google's ``protobuf``. A
message is one block of memory of less than 2 GiB, so use ``.tensors`` files for weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, BinaryIO

import torch

from tensorizer_ops import errors, tensors_pb2
from tensorizer_ops._base.memory import copy_bytes
from tensorizer_ops.tensors_pb2 import Tensor as TensorPb  # noqa: F401

__all__ = [
    "DtypePbs",
    "PbDtypes",
    "PbNpyDtypes",
    "deserialize_model",
    "deserialize_tensor",
    "serialize_model",
    "serialize_tensor",
]

# The number of each element type in messages.
DtypePbs: dict[torch.dtype, int] = {
    torch.float32: tensors_pb2.DT_FLOAT32,
    torch.float64: tensors_pb2.DT_FLOAT64,
    torch.float16: tensors_pb2.DT_FLOAT16,
    torch.bfloat16: tensors_pb2.DT_BFLOAT16,
    torch.complex32: tensors_pb2.DT_COMPLEX32,
    torch.complex64: tensors_pb2.DT_COMPLEX64,
    torch.complex128: tensors_pb2.DT_COMPLEX128,
    torch.uint8: tensors_pb2.DT_UINT8,
    torch.int8: tensors_pb2.DT_INT8,
    torch.int16: tensors_pb2.DT_INT16,
    torch.int32: tensors_pb2.DT_INT32,
    torch.int64: tensors_pb2.DT_INT64,
    torch.bool: tensors_pb2.DT_BOOL,
    torch.quint8: tensors_pb2.DT_QUINT8,
    torch.qint8: tensors_pb2.DT_QINT8,
    torch.qint32: tensors_pb2.DT_QINT32,
    torch.quint4x2: tensors_pb2.DT_QUINT4_2,
}
PbDtypes: dict[int, torch.dtype] = {number: dtype for dtype, number in DtypePbs.items()}

# A message has no scale and zero point, so quantized tensors are read as plain integers.
_UNQUANTIZED = {
    torch.quint8: torch.uint8,
    torch.qint8: torch.int8,
    torch.qint32: torch.int32,
    torch.quint4x2: torch.uint8,
}
_IN_NUMPY = _UNQUANTIZED | {torch.bfloat16: torch.float16, torch.complex32: torch.complex64}


PbNpyDtypes: dict[int, Any]


def __getattr__(name: str) -> Any:
    # Only this table needs numpy.
    if name != "PbNpyDtypes":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import numpy

    table: dict[int, Any] = {}
    for number, dtype in PbDtypes.items():
        held = _IN_NUMPY.get(dtype, dtype)
        table[number] = bool if held is torch.bool else getattr(numpy, str(held).split(".")[1])
    globals()[name] = table
    return table


def serialize_tensor(t: torch.Tensor, attribute: int | None = None) -> Any:
    """Convert a tensor to a message, with its kind of attribute if that is given.

    Args:
        t: a dense tensor on any device.
        attribute: ``AT_PARAMETER`` or ``AT_BUFFER`` of :mod:`tensorizer_ops.tensors_pb2`.

    Raises:
        KeyError: messages have no number for the tensor's element type.
        TypeError: ``t`` is not a tensor, is sparse or quantized, or has no memory of its own.
        ValueError: ``attribute`` is not a valid kind.
    """
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"t is {type(t).__name__}, and must be a tensor")
    if attribute not in (None, *tensors_pb2.AttributeType.values()):
        raise ValueError(f"attribute is {attribute!r}, and must be AT_PARAMETER or AT_BUFFER")
    if t.dtype not in DtypePbs:
        raise KeyError(f"messages have no number for {t.dtype}")
    if t.layout != torch.strided or t.is_quantized:
        raise TypeError("a message holds neither sparse nor quantized tensors: convert it first")
    data = copy_bytes(t)
    if data is None:
        raise TypeError("the tensor has no memory of its own to put into a message: convert it")
    kind = {} if attribute is None else {"attr_type": attribute}
    return tensors_pb2.Tensor(dtype=DtypePbs[t.dtype], shape=t.shape, data=data, **kind)


def deserialize_tensor(t: Any) -> torch.Tensor | tuple[torch.Tensor, int]:
    """Return the tensor in a message, or a tuple of the tensor and its kind of attribute.

    It is a tuple if the message contains the kind. The tensor owns its memory.

    Raises:
        ValueError: the message is not a valid tensor: its type, shape and data do not match.
    """
    tensor = _to_tensor(t)
    return (tensor, t.attr_type) if t.HasField("attr_type") else tensor


def _to_tensor(message: Any) -> torch.Tensor:
    dtype = PbDtypes.get(message.dtype)
    if dtype is None:
        raise errors.InvalidFormat(f"a message has a tensor of the unknown type {message.dtype}")
    dtype = _UNQUANTIZED.get(dtype, dtype)
    shape = list(message.shape)
    needed = math.prod(shape) * dtype.itemsize
    if needed != len(message.data):
        raise errors.InvalidFormat(
            f"a message has {len(message.data)} bytes for a tensor of {dtype} and the shape "
            f"{shape}, which takes {needed}",
        )
    try:
        if not needed:
            return torch.empty(shape, dtype=dtype, device="cpu")
        return torch.frombuffer(bytearray(message.data), dtype=dtype).reshape(shape)
    except (RuntimeError, TypeError, OverflowError) as error:  # dimensions beyond 64 bits
        raise errors.InvalidFormat(f"a message has the shape {shape}: {error}") from None


def serialize_model(model: torch.nn.Module, file_stream: BinaryIO) -> None:
    """Write a module's parameters and buffers to a file, as one message."""
    message = tensors_pb2.Module()
    for name, owner in model.named_modules():
        part = message.attributes.add(name=name).module
        part.SetInParent()  # writes the module even if it is empty
        for kind, tensors in (
            (tensors_pb2.AT_PARAMETER, owner.named_parameters(recurse=False)),
            (tensors_pb2.AT_BUFFER, owner.named_buffers(recurse=False)),
        ):
            for leaf, tensor in tensors:
                part.attributes.add(name=leaf, tensor=serialize_tensor(tensor, kind))
    file_stream.write(message.SerializeToString())


def deserialize_model(model: torch.nn.Module, file_stream: BinaryIO) -> None:
    """Set a module's parameters and buffers from a file that :func:`serialize_model` wrote.

    If this raises an exception, the model is unchanged.

    Raises:
        KeyError: the model has no such module, or has something else under a tensor's name.
        ValueError: the file does not contain such a message, or a tensor has another shape in the
            model.
    """
    from google.protobuf.message import DecodeError

    message = tensors_pb2.Module()
    try:
        message.ParseFromString(file_stream.read())
    except DecodeError as error:
        raise errors.InvalidFormat(f"the file holds no message of a module: {error}") from None
    for own, name, tensor in list(_fitting(model, message)):
        own[name] = tensor


def _fitting(model: torch.nn.Module, message: Any) -> Iterator[tuple[Any, str, torch.Tensor]]:
    """Yield for each tensor of a message: the dict of its module to put it in, name, tensor."""
    modules = dict(model.named_modules())
    for part in message.attributes:
        if part.name not in modules:
            raise KeyError(f"the model has no module {part.name!r}")
        owner = modules[part.name]
        for attribute in part.module.attributes:
            name, stored = attribute.name, attribute.tensor
            if not stored.HasField("attr_type"):
                continue
            place = f"{name!r} of the module {part.name!r}"
            if stored.attr_type not in tensors_pb2.AttributeType.values():
                raise errors.InvalidFormat(f"{place} is of the unknown kind {stored.attr_type}")
            if not name or "." in name:
                raise errors.InvalidFormat(f"{place} is not a valid name of a tensor")
            parameter = stored.attr_type == tensors_pb2.AT_PARAMETER
            own = owner._parameters if parameter else owner._buffers
            if name not in own and hasattr(owner, name):
                raise KeyError(f"{place} is something else in the model")
            yield own, name, _in_place_of(own.get(name), _to_tensor(stored), parameter, place)


def _in_place_of(
    old: torch.Tensor | None, tensor: torch.Tensor, parameter: bool, place: str
) -> torch.Tensor:
    if old is not None and old.shape != tensor.shape:
        raise errors.InvalidFormat(
            f"{place} has the shape {list(tensor.shape)} in the file, and {list(old.shape)} here",
        )
    if not parameter:
        return tensor
    wanted = old is None or old.requires_grad
    can = tensor.is_floating_point() or tensor.is_complex()
    return torch.nn.Parameter(tensor, requires_grad=wanted and can)
