"""The load format ``tensorizer_ops`` in vLLM and SGLang themselves, where these are installed.

They are not among the packages of the tests, because they need hundreds of MB. A model of two ranks
is built and loaded without a GPU, and compared with what the server's own loader loads.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import tensorizer_ops
from local_servers.web import free_port
from support.process import run_python
from support.ranks import Ranks, run_ranks

MODEL = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
config = LlamaConfig(hidden_size=1024, intermediate_size=4096, num_hidden_layers=2,
                     num_attention_heads=8, num_key_value_heads=4, vocab_size=2048)
LlamaForCausalLM(config).bfloat16().save_pretrained(sys.argv[1], max_shard_size="40MB")
"""

# The sum of the bytes that are loaded in parts.
COUNTED = """
loaded = []
load = tensorizer_ops.Reader.load
def counted(*args, **kwargs):
    found = load(*args, **kwargs)
    loaded.extend(tensor.nbytes for tensor in found.values())
    return found
tensorizer_ops.Reader.load = counted
"""

VLLM = """
model, name, extra, port = given
from vllm.config import (
    DeviceConfig, LoadConfig, ModelConfig, ParallelConfig, VllmConfig, set_current_vllm_config)
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.model_loader import get_model_loader
from vllm.plugins import load_general_plugins
load_general_plugins()
model_config = ModelConfig(
    model=model, tokenizer=model, skip_tokenizer_init=True, dtype="bfloat16", enforce_eager=True)
config = VllmConfig(
    model_config=model_config, device_config=DeviceConfig("cpu"),
    load_config=LoadConfig(load_format=name, model_loader_extra_config=json.loads(extra)),
    parallel_config=ParallelConfig(tensor_parallel_size=size, distributed_executor_backend="mp"))
with set_current_vllm_config(config):
    where = f"tcp://127.0.0.1:{port}"
    init_distributed_environment(size, rank, where, rank, backend="gloo")
    initialize_model_parallel(size)
    torch.set_default_dtype(torch.bfloat16)
    loader = get_model_loader(config.load_config)
    built = loader.create_model(vllm_config=config, model_config=model_config)
    loader.load_weights(built, model_config)
"""

SGLANG = """
model, name, extra, port = given
from sglang.srt.plugins import load_plugins
load_plugins()
import sglang.srt.runtime_context as runtime
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed.parallel_state import (
    init_distributed_environment, initialize_model_parallel)
from sglang.srt.layers.dp_attention import initialize_dp_attention
from sglang.srt.model_loader.loader import get_model_loader
from sglang.srt.server_args import prepare_server_args
arguments = prepare_server_args([
    "--model-path", model, "--load-format", name, "--model-loader-extra-config", extra,
    "--tp-size", str(size), "--device", "cpu", "--skip-tokenizer-init"])
arguments.resolve_once()
runtime.publish(arguments, role="scheduler", ranks=runtime.SpawnRanks(world_rank=rank))
init_distributed_environment(
    backend="gloo", world_size=size, rank=rank, local_rank=rank,
    distributed_init_method=f"tcp://127.0.0.1:{port}")
initialize_model_parallel()
model_config = ModelConfig.from_server_args(arguments)
initialize_dp_attention(arguments)
load_config = LoadConfig(load_format=arguments.load_format,
                         model_loader_extra_config=arguments.model_loader_extra_config)
loader = get_model_loader(load_config, model_config)
built = loader.load_model(model_config=model_config, device_config=DeviceConfig("cpu", 0))
"""

REPORT = """
import hashlib
digests = {}
for name, tensor in built.named_parameters():
    data = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    digests[name] = hashlib.sha256(data).hexdigest()
report([digests, sum(loaded)])
os._exit(0)
"""

SERVERS = {"vllm": VLLM, "sglang": SGLANG}


def installed(server: str) -> bool:
    if importlib.util.find_spec(server) is None:
        return False
    asks_platform = "from vllm.platforms import current_platform as p; print(p.is_cpu())"
    return server != "vllm" or run_python(asks_platform).stdout.split()[-1:] == [b"True"]


@pytest.mark.parametrize("server", SERVERS)
def test_two_ranks_have_what_the_server_loads(tmp_path: Path, server: str) -> None:
    if not installed(server):
        pytest.skip(f"{server} for the CPU is not installed")
    folder = tmp_path / "model"
    run_python(MODEL, folder)
    tensors = tensorizer_ops.load(folder, copy=True)
    tensorizer_ops.save(tmp_path / "m.tensors", tensors, hashes="chunked")
    size = sum(tensor.nbytes for tensor in tensors.values())

    def run(where: str, name: str, extra: dict[str, Any]) -> Ranks:
        code = COUNTED + SERVERS[server] + REPORT
        return run_ranks(
            tmp_path / where, code, folder, name, json.dumps(extra), free_port(), count=2
        )

    usual = run("usual", "auto", {})
    shards = run("shards", "tensorizer_ops", {})
    verified = {"uri": str(tmp_path / "m.tensors"), "verify": "all"}
    file = run("file", "tensorizer_ops", verified)
    for expected, *ours in zip(usual.reports, shards.reports, file.reports, strict=True):
        for digests, loaded in ours:
            assert digests == expected[0]
            assert 0.49 * size < loaded < 0.51 * size
