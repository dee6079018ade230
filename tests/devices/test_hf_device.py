"""Models of transformers are loaded onto the simulated device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support import sim_device as sim
from support.samples import same
from tensorizer_ops.hf import from_pretrained, save_pretrained

transformers = pytest.importorskip("transformers")


def test_weights_are_copied_to_the_device_once(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
    config = transformers.LlamaConfig(**sizes, intermediate_size=64)
    model = transformers.LlamaForCausalLM(config)
    save_pretrained(model, tmp_path / "m")
    for asked in ({"device": "sim:1"}, {"device_map": {"": "sim:1"}}):
        with sim.fresh():
            loaded = from_pretrained(tmp_path / "m", **asked)
            assert sim.counter("copies.async_to_device") > 0, "they were not loaded onto the device"
            for name, tensor in model.state_dict().items():
                there = loaded.state_dict()[name]
                assert there.device == torch.device("sim:1")
                assert same(there.cpu(), tensor), name
            del loaded, there
            assert not sim.violations()
