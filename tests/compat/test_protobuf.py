"""Messages of tensors and modules, compared with those of PyPI's tensorizer."""

from __future__ import annotations

import inspect
import io
import random

import pytest
import tensorizer.protobuf as their_protobuf
import tensorizer.tensors_pb2 as their_messages
import torch
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from support.process import run_python
from support.samples import OTHER_KINDS, freed, same, sample
from tensorizer_ops import protobuf, tensors_pb2

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in protobuf.DtypePbs}
QUANTIZED = {"quint8", "qint8", "qint32", "quint4x2"}
# Dtypes that tensorizer cannot write, because numpy does not have them.
OURS_ALONE = {"bfloat16", "complex32"}
SHAPES: list[tuple[int, ...]] = [(), (7,), (2, 3, 4), (0,), (3, 0, 2)]


def test_the_messages_are_described_alike() -> None:
    ours, theirs = (
        FileDescriptorProto.FromString(messages.DESCRIPTOR.serialized_pb)
        for messages in (tensors_pb2, their_messages)
    )
    theirs.ClearField("options")  # the Go package
    assert ours == theirs
    for name, value in vars(their_messages).items():
        if not name.startswith("_") and not inspect.ismodule(value):
            assert hasattr(tensors_pb2, name), name
    for name in [*tensors_pb2.Dtype.keys(), *tensors_pb2.AttributeType.keys()]:
        assert getattr(tensors_pb2, name) == getattr(their_messages, name)


def test_tables_are_theirs() -> None:
    for name in ("DtypePbs", "PbDtypes", "PbNpyDtypes"):
        assert getattr(protobuf, name) == getattr(their_protobuf, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        protobuf.nothing  # noqa: B018


@pytest.mark.parametrize("kind", [None, tensors_pb2.AT_PARAMETER, tensors_pb2.AT_BUFFER])
@pytest.mark.parametrize("name", sorted(DTYPES.keys() - QUANTIZED - OURS_ALONE))
def test_tensors_go_both_ways(name: str, kind: int | None) -> None:
    for shape in SHAPES:
        tensor = sample(DTYPES[name], shape)
        ours, theirs = (
            module.serialize_tensor(tensor, kind).SerializeToString()
            for module in (protobuf, their_protobuf)
        )
        assert ours == theirs
        read = protobuf.deserialize_tensor(tensors_pb2.Tensor.FromString(theirs))
        read_there = their_protobuf.deserialize_tensor(their_messages.Tensor.FromString(ours))
        if kind is not None:
            assert isinstance(read, tuple)
            assert read[1] == read_there[1] == kind
            read, read_there = read[0], read_there[0]
        assert isinstance(read, torch.Tensor)
        assert same(read, tensor)
        assert same(read_there, tensor)


@pytest.mark.parametrize("name", sorted(OURS_ALONE))
def test_what_numpy_lacks_goes_there_and_back(name: str) -> None:
    for shape in SHAPES:
        tensor = sample(DTYPES[name], shape)
        message = protobuf.serialize_tensor(tensor)
        assert message.dtype == their_protobuf.DtypePbs[tensor.dtype]
        read = protobuf.deserialize_tensor(message)
        assert isinstance(read, torch.Tensor)
        assert same(read, tensor)


@pytest.mark.parametrize("name", sorted(QUANTIZED))
def test_quantized_messages_give_their_integers(name: str) -> None:
    message = tensors_pb2.Tensor(dtype=protobuf.DtypePbs[DTYPES[name]], shape=[2], data=b"\1\2" * 1)
    if name == "qint32":
        message.data = b"\1\0\0\0\2\0\0\0"
    there = their_messages.Tensor.FromString(message.SerializeToString())
    read = protobuf.deserialize_tensor(message)
    assert isinstance(read, torch.Tensor)
    assert same(read, their_protobuf.deserialize_tensor(there))


def test_what_is_no_plain_tensor() -> None:
    base = sample(torch.complex64, (3, 4))
    for tensor in (
        base.t(),
        base[:, ::2],
        base.conj(),
        base.conj().imag,
        base.real.expand(2, 3, 4),
    ):
        plain = tensor.clone().resolve_conj().resolve_neg()
        read = protobuf.deserialize_tensor(protobuf.serialize_tensor(tensor))
        assert isinstance(read, torch.Tensor)
        assert same(read, plain)
    parameter = torch.nn.Parameter(torch.ones(3))
    message = protobuf.serialize_tensor(parameter)
    read = protobuf.deserialize_tensor(message)
    assert isinstance(read, torch.Tensor)
    read.add_(1)  # does not change the message
    assert message.data == parameter.detach().numpy().tobytes()


def test_what_cannot_be_serialized() -> None:
    for wrong in ([1, 2], None):
        with pytest.raises(TypeError, match="must be a tensor"):
            protobuf.serialize_tensor(wrong)
    with pytest.raises(TypeError, match="sparse"):
        protobuf.serialize_tensor(torch.ones(3).to_sparse())
    for kind in ("two tensors", "fake"):
        tensor = OTHER_KINDS[kind](torch.ones(2, 2))
        with pytest.raises(RuntimeError, match="subclasses"):
            their_protobuf.serialize_tensor(tensor)
        with pytest.raises(TypeError, match="no memory of its own"):
            protobuf.serialize_tensor(tensor)
    for tensor in (
        freed(torch.ones(3)),
        torch.ones(3, device="meta"),
        OTHER_KINDS["nested"](torch.ones(3)),
    ):
        with pytest.raises(TypeError, match="no memory of its own"):
            protobuf.serialize_tensor(tensor)
    with pytest.raises(KeyError, match=r"torch\.uint16"):
        protobuf.serialize_tensor(torch.ones(3, dtype=torch.uint16))
    with pytest.raises(ValueError, match="attribute is 7"):
        protobuf.serialize_tensor(torch.ones(3), 7)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dtype": 0}, "unknown type 0"),
        ({"dtype": 99}, "unknown type 99"),
        ({"shape": [-1]}, r"shape \[-1\]"),
        ({"shape": [-2, -1]}, r"shape \[-2, -1\]"),
        ({"shape": [3]}, "8 bytes.* 12"),
        ({"shape": [1]}, "8 bytes.* 4"),
        ({"shape": []}, "8 bytes.* 4"),
        ({"shape": [2**62, 2**62]}, "8 bytes"),
        ({"shape": [0, 2**62, 2**62], "data": b""}, "shape"),
        ({"data": b"1234567"}, "7 bytes.* 8"),
    ],
)
def test_messages_that_do_not_fit(fields: dict[str, object], says: str) -> None:
    good = {"dtype": tensors_pb2.DT_FLOAT32, "shape": [2], "data": bytes(8)}
    with pytest.raises(ValueError, match=says):
        protobuf.deserialize_tensor(tensors_pb2.Tensor(**good | fields))


class Model(torch.nn.Module):
    def __init__(self, start: float) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        self.norm = torch.nn.BatchNorm1d(3)
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("hidden", torch.ones(1), persistent=False)
        with torch.no_grad():
            for number, tensor in enumerate([*self.parameters(), *self.buffers()]):
                tensor.fill_(start + number)


def message_of(model: torch.nn.Module) -> bytes:
    file = io.BytesIO()
    protobuf.serialize_model(model, file)
    return file.getvalue()


def test_models_go_both_ways() -> None:
    file = io.BytesIO()
    their_protobuf.serialize_model(Model(1), file)
    assert message_of(Model(1)) == file.getvalue()
    filled = Model(100)
    protobuf.deserialize_model(filled, io.BytesIO(file.getvalue()))
    assert message_of(filled) == file.getvalue()
    # Everything except the values is unchanged.
    assert filled.state_dict().keys() == Model(1).state_dict().keys()
    assert [p.requires_grad for p in filled.parameters()] == [
        p.requires_grad for p in Model(1).parameters()
    ]
    assert all(isinstance(p, torch.nn.Parameter) for p in filled.parameters())


def test_models_that_do_not_fit_stay_as_they_are() -> None:
    other = Model(100)
    other.norm = torch.nn.BatchNorm1d(5)
    clash = Model(100)
    clash.register_parameter("forward_hook", torch.nn.Parameter(torch.ones(1)))
    small = Model(5)
    small.forward_hook = "no tensor"
    dotted = tensors_pb2.Module()
    part = dotted.attributes.add(name="").module.attributes.add(name="a.b")
    part.tensor.CopyFrom(protobuf.serialize_tensor(torch.ones(1), tensors_pb2.AT_BUFFER))
    strange = tensors_pb2.Module.FromString(message_of(Model(100)))
    strange.attributes[0].module.attributes[0].tensor.attr_type = 9
    for model, message, error, says in (
        (Model(5), message_of(other), ValueError, r"of the module 'norm' has the shape \[5\]"),
        (torch.nn.Linear(2, 3), message_of(Model(5)), KeyError, "no module 'inner'"),
        (small, message_of(clash), KeyError, "'forward_hook'.*something else"),
        (Model(5), dotted.SerializeToString(), ValueError, "'a.b'"),
        (Model(5), strange.SerializeToString(), ValueError, "unknown kind 9"),
        (Model(5), b"\xff" * 10, ValueError, "no message of a module"),
    ):
        before = message_of(model)
        with pytest.raises(error, match=says):
            protobuf.deserialize_model(model, io.BytesIO(message))
        assert message_of(model) == before


def test_damaged_models_are_errors_or_models() -> None:
    whole = message_of(Model(1))
    chance = random.Random(11)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            protobuf.deserialize_model(Model(1), io.BytesIO(damaged[: chance.randint(1, 2000)]))
        except (ValueError, KeyError):
            refused += 1
    assert 100 < refused < 1500


WITHOUT = """
import sys
sys.modules["google.protobuf"] = None
import tensorizer_ops
for name in ("tensors_pb2", "protobuf"):
    try:
        getattr(tensorizer_ops, name)
    except ImportError as error:
        print(error)
"""


def test_without_googles_package_an_import_says_what_to_install() -> None:
    said = run_python(WITHOUT).stdout.decode().splitlines()
    assert (
        said
        == ["tensorizer_ops.tensors_pb2 needs Google's protobuf: run `pip install protobuf`"] * 2
    )
