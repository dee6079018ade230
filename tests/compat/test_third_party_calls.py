"""Calls in the form in which programs that use tensorizer make them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.samples import same
from tensorizer_ops import DecryptionParams, EncryptionParams, TensorDeserializer, TensorSerializer


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    marker = torch.nn.Parameter(torch.tensor((1,), device="meta"), requires_grad=False)
    module.register_parameter("vllm_tensorized_marker", marker)
    return module


def test_a_server_of_models_saves_and_loads(path: str) -> None:
    key = EncryptionParams.random().key
    with open(path, "wb+") as stream:
        serializer = TensorSerializer(
            stream, encryption=EncryptionParams(key=key), limit_cpu_concurrency=2
        )
        serializer.write_module(model())
        serializer.close()
    other = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)).to("meta")
    with (
        open(path, "rb") as stream,
        TensorDeserializer(
            stream,
            dtype=torch.float32,
            device=torch.device("cpu"),
            verify_hash=True,
            encryption=DecryptionParams.from_key(key),
            num_readers=2,
        ) as deserializer,
    ):
        deserializer.load_into_module(other)
    layers = [*other[0].parameters(), *other[1].parameters()]
    assert deserializer.total_tensor_bytes == sum(layer.nbytes for layer in layers)
    deserializer.close()
    assert same(other[0].weight, model()[0].weight)
    with open(path, "rb") as stream:
        lazy = TensorDeserializer(stream, lazy_load=True, encryption=DecryptionParams.from_key(key))
        assert ".vllm_tensorized_marker" in lazy
        assert "vllm_tensorized_marker" in lazy
        lazy.close()


def test_plaid_mode_has_no_effect(path: str) -> None:
    with TensorSerializer(Path(path), False) as serializer:
        serializer.write_module(model())
    for options in ({"plaid_mode": True}, {"plaid_mode_buffers": 2}, {"plaid_mode": None}):
        with TensorDeserializer(path, "cpu", **options) as deserializer:
            assert len(deserializer) == 5
    with TensorDeserializer(Path(path), lazy_load=True, device="cpu") as deserializer:
        assert same(deserializer["1.weight"], torch.ones(4))


def test_a_whole_path_in_memory() -> None:
    class Kept(io.BytesIO):
        def close(self) -> None:
            pass

    stream = Kept()
    serializer = TensorSerializer(stream)
    serializer.write_state_dict(model().state_dict())
    serializer.close()
    stream.seek(0)
    loaded = TensorDeserializer(io.BytesIO(stream.getvalue()), device="cpu")
    torch.nn.Module.load_state_dict(model(), loaded)
    assert loaded.total_file_bytes == loaded.total_tensor_bytes
    assert (loaded.read_bytes, loaded.total_compressed_tensor_bytes) == (0, 0)


def test_a_test_replaces_what_a_class_does(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    seen: list[Any] = []
    original = tensorizer_ops.serialization.TensorSerializer.__init__

    def replaced(self: TensorSerializer, file_obj: Any, **options: Any) -> None:
        seen.append(options)
        original(self, file_obj, **options)

    monkeypatch.setattr(tensorizer_ops.serialization.TensorSerializer, "__init__", replaced)
    TensorSerializer(path, limit_cpu_concurrency=1).close()
    assert seen == [{"limit_cpu_concurrency": 1}]
