"""The messages of ``tensors.proto``, as ``protoc`` would generate them.

They are created when this module is imported, in a descriptor pool of their own, so they cannot
conflict with other messages of the same name in a program. Needs Google's ``protobuf``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from google.protobuf import descriptor_pool, message_factory
    from google.protobuf.descriptor_pb2 import (
        DescriptorProto,
        EnumDescriptorProto,
        FieldDescriptorProto,
        FileDescriptorProto,
        OneofDescriptorProto,
    )
    from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
except ModuleNotFoundError as error:
    raise ImportError(
        "tensorizer_ops.tensors_pb2 needs Google's protobuf: run `pip install protobuf`"
    ) from error

_PACKAGE = "tensors"
_SCALARS = {"bool", "bytes", "float", "int64", "string"}
_ENUMS: dict[str, list[str]] = {
    "Dtype": [
        "DT_INVALID",
        "DT_FLOAT32",
        "DT_FLOAT64",
        "DT_FLOAT16",
        "DT_BFLOAT16",
        "DT_COMPLEX32",
        "DT_COMPLEX64",
        "DT_COMPLEX128",
        "DT_UINT8",
        "DT_INT8",
        "DT_INT16",
        "DT_INT32",
        "DT_INT64",
        "DT_BOOL",
        "DT_QUINT8",
        "DT_QINT8",
        "DT_QINT32",
        "DT_QUINT4_2",
    ],
    "AttributeType": ["AT_PARAMETER", "AT_BUFFER"],
}


def _field(
    name: str, number: int, kind: str, *, repeated: bool = False, **more: Any
) -> FieldDescriptorProto:
    """Make a field; ``kind`` is the name of a scalar type, an enum or a message."""
    types = FieldDescriptorProto
    field = FieldDescriptorProto(
        name=name,
        number=number,
        label=types.LABEL_REPEATED if repeated else types.LABEL_OPTIONAL,
        **more,
    )
    if kind in _SCALARS:
        field.type = types.Type.Value(f"TYPE_{kind.upper()}")
    else:
        field.type = types.TYPE_ENUM if kind in _ENUMS else types.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"
    return field


def _file() -> FileDescriptorProto:
    tensor = DescriptorProto(
        name="Tensor",
        field=[
            _field("dtype", 1, "Dtype"),
            _field("shape", 2, "int64", repeated=True),
            _field("data", 3, "bytes"),
            # proto3 puts an optional field into a oneof of its own, so that it has presence.
            _field("attr_type", 4, "AttributeType", oneof_index=0, proto3_optional=True),
        ],
        oneof_decl=[OneofDescriptorProto(name="_attr_type")],
    )
    attribute = DescriptorProto(
        name="Attribute",
        field=[
            _field("name", 1, "string"),
            _field("module", 3, "Module", oneof_index=0),
            _field("tensor", 4, "Tensor", oneof_index=0),
            _field("string", 5, "string", oneof_index=0),
            _field("int64", 6, "int64", oneof_index=0),
            _field("float", 7, "float", oneof_index=0),
            _field("bool", 8, "bool", oneof_index=0),
        ],
        oneof_decl=[OneofDescriptorProto(name="value")],
    )
    module = DescriptorProto(
        name="Module",
        field=[
            _field("name", 1, "string"),
            _field("names", 2, "string", repeated=True),
            _field("attributes", 3, "Attribute", repeated=True),
        ],
    )
    file = FileDescriptorProto(
        name="tensors.proto",
        package=_PACKAGE,
        syntax="proto3",
        message_type=[tensor, attribute, module],
    )
    for name, values in _ENUMS.items():
        enum = EnumDescriptorProto(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
        file.enum_type.append(enum)
    return file


def _message(name: str) -> Any:
    made = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name[name])
    made.__module__ = __name__
    return made


DESCRIPTOR = descriptor_pool.DescriptorPool().AddSerializedFile(_file().SerializeToString())

Tensor = _message("Tensor")
Attribute = _message("Attribute")
Module = _message("Module")
Dtype = EnumTypeWrapper(DESCRIPTOR.enum_types_by_name["Dtype"])
AttributeType = EnumTypeWrapper(DESCRIPTOR.enum_types_by_name["AttributeType"])
globals().update([*Dtype.items(), *AttributeType.items()])

if TYPE_CHECKING:

    def __getattr__(name: str) -> int: ...  # the values of the enums
