"""Calls in the form in which programs that use tensorizer make them."""

from __future__ import annotations

import io
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.samples import assert_same, same
from tensorizer_ops import (
    DecryptionParams,
    EncryptionParams,
    TensorDeserializer,
    TensorSerializer,
    stream_io,
)
from tensorizer_ops.utils import convert_bytes, get_mem_usage, no_init_or_tensor


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    marker = torch.nn.Parameter(torch.tensor((1,), device="meta"), requires_grad=False)
    module.register_parameter("vllm_tensorized_marker", marker)
    return module


def causal_model(transformers: Any) -> Any:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 8}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()


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


def test_predictors_make_a_model_from_an_empty_state_dict(path: str, tmp_path: Path) -> None:
    """As predictors of cog do: transformers gets a config, no name and no weights."""
    transformers = pytest.importorskip("transformers")
    saved = causal_model(transformers).half()
    saved.config.save_pretrained(tmp_path)
    serializer = TensorSerializer(path)
    serializer.write_module(saved)
    serializer.close()
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    kind = transformers.GPT2LMHeadModel  # an Auto class of transformers 5 needs a name
    made = no_init_or_tensor(
        lambda: kind.from_pretrained(None, config=config, state_dict=OrderedDict())
    )
    deserializer = TensorDeserializer(path, plaid_mode=True, device="cpu")
    deserializer.load_into_module(made)
    assert_same(made.state_dict(), saved.state_dict())


def test_a_service_loads_from_a_volume_and_reports(path: str, tmp_path: Path) -> None:
    """As predictors of KServe do: a path or a stream, and how long it took."""
    transformers = pytest.importorskip("transformers")
    saved = causal_model(transformers)
    saved.config.save_pretrained(tmp_path)
    with TensorSerializer(path) as serializer:
        serializer.write_module(saved)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "config.json")
    for opened in (path, stream_io.open_stream(path, "rb")):
        with no_init_or_tensor():
            made = transformers.AutoModelForCausalLM.from_config(config)
        start = time.time()
        deserializer = TensorDeserializer(opened, plaid_mode=True, device="cpu")
        assert deserializer.load_into_module(made) == len(deserializer)
        took = max(time.time() - start, 1e-9)
        total = deserializer.total_tensor_bytes
        deserializer.close()
        assert convert_bytes(total / took).endswith("B") and "CPU" in get_mem_usage()
        assert_same(made.to(dtype=torch.float32).state_dict(), saved.state_dict())
