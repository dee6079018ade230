"""Models that torchao has quantized, with torchao's own functions for their parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torchao.prototype.safetensors.safetensors_support import (
    flatten_tensor_state_dict,
    unflatten_tensor_state_dict,
)
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    quantize_,
)

import tensorizer_ops
from tensorizer_ops.safetensors import save_file

CONFIGS = {
    "int8": lambda: Int8WeightOnlyConfig(version=2),
    "float8": Float8WeightOnlyConfig,
    "int8 activations": lambda: Int8DynamicActivationInt8WeightConfig(version=2),
}


def build() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))


@pytest.mark.parametrize("config", CONFIGS)
def test_quantized_models_are_saved_in_parts(tmp_path: Path, config: str) -> None:
    model = build()
    quantize_(model, CONFIGS[config]())
    inputs = torch.rand(3, 64)
    tensors, metadata = flatten_tensor_state_dict(model.state_dict())
    save_file(tensors, tmp_path / "m.safetensors", metadata=metadata)
    tensorizer_ops.save(tmp_path / "m.tensors", tensors, metadata=metadata)
    for name in ("m.safetensors", "m.tensors"):
        path = tmp_path / name
        stored = tensorizer_ops.metadata(path)
        state, left = unflatten_tensor_state_dict(tensorizer_ops.load(path), stored)
        loaded = build()
        loaded.load_state_dict(state, assign=True)
        assert not left and torch.equal(loaded(inputs), model(inputs))
