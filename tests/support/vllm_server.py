"""Servers of vLLM on the CPUs of this machine, models for them, and what they answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from local_servers.waiting import LAST_RESORT, wait_until
from local_servers.web import free_port
from support.process import environment

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [300, 200, 100, 0]]
VOCABULARY = 512

# What `vllm serve` and `LLM()` are given, beside the model.
COMMON = {"dtype": "bfloat16", "max_model_len": 128, "enforce_eager": True}


def save_model(folder: Path, seed: int, kind: str = "llama") -> None:
    """Save a random Llama model, or a Mixtral model, as transformers does.

    Four of its tensors are 2 MiB, so that two ranks load parts of them.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    own = {"intermediate_size": 4096} if kind == "llama" else {"num_local_experts": 4}
    config = AutoConfig.for_model(
        kind,
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        **{"intermediate_size": 512, **own},
    )
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["a few words to learn from"], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def quantize(folder: Path) -> None:
    """Give the linear layers of a saved model weights of 8 bits, as compressed-tensors has them."""
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors[name].float()
        scale = weight.abs().amax(1, keepdim=True) / 127
        tensors[name] = (weight / scale).round().to(torch.int8)
        tensors[f"{name}_scale"] = scale
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    integer = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**integer, "strategy": "channel", "dynamic": False},
        "input_activations": {**integer, "strategy": "token", "dynamic": True},
    }
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
    (folder / "config.json").write_text(json.dumps(config))


def ours(uri: object, **settings: Any) -> tuple[str, ...]:
    """Return the arguments that load the weights at a URI with this library."""
    given = json.dumps({"uri": str(uri), **settings})
    return ("--load-format", "tensorizer_ops", "--model-loader-extra-config", given)


def vllm_environment(folder: Path, ranks: int = 1) -> dict[str, str]:
    """Return the environment of processes that use vLLM. Its caches are in `folder`."""
    given = environment() | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "VLLM_CONFIG_ROOT": str(folder / "config"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return given | (one_cpu_each() if ranks > 1 else {})


def one_cpu_each() -> dict[str, str]:
    """Return the variable that binds each of two workers to a CPU of its own."""
    cpus = sorted(os.sched_getaffinity(0))
    return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cpus[:2]))}


@dataclass
class Server:
    """A process of `vllm serve`, in a session of its own, which has all its children."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def answers(self) -> bool:
        """Return whether the server is ready. It listens only when it has the weights."""
        try:
            with self._open("/health") as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        with self._open(path, json.dumps(body or {}).encode()) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def get(self, path: str) -> Any:
        with self._open(path) as answer:
            return json.loads(answer.read())

    def complete(self) -> list[Any]:
        """Return the tokens that follow each of `PROMPTS`, and their log-probabilities."""
        asked = {"max_tokens": 16, "temperature": 0, "ignore_eos": True, "logprobs": 1}
        found = []
        for prompt in PROMPTS:
            body = {"prompt": prompt, "return_token_ids": True, **asked}
            (choice,) = self.post("/v1/completions", body)["choices"]
            assert len(choice["token_ids"]) == 16
            found.append([choice["token_ids"], choice["logprobs"]["token_logprobs"]])
        return found

    def processes(self) -> list[int]:
        """Return the processes of the server that have not ended."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
            if int(session) == self.process.pid and state != "Z":
                found.append(int(stat.parent.name))
        return found

    def _open(self, path: str, data: bytes | None = None) -> Any:
        headers = {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, headers)
        return urllib.request.urlopen(request, timeout=LAST_RESORT)


@contextmanager
def started(
    folder: Path, model: Path, *arguments: str, ranks: int = 1, **variables: str
) -> Iterator[Server]:
    """Start `vllm serve`, whose log and caches are in `folder`; kill what is left of it after."""
    folder.mkdir()
    port, log = free_port(), folder / "log"
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--tensor-parallel-size", str(ranks)]
    for name, value in COMMON.items():
        command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *arguments],
            env=vllm_environment(folder, ranks) | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    server = Server(process, port, log)
    try:
        yield server
    finally:
        _kill(server)


@contextmanager
def serving(
    folder: Path, model: Path, *arguments: str, ranks: int = 1, **variables: str
) -> Iterator[Server]:
    """Start `vllm serve` as :func:`started`, wait until it answers, and let it end by itself."""
    with started(folder, model, *arguments, ranks=ranks, **variables) as server:
        wait_until(server.answers, server.process, server.log)
        yield server
        server.process.terminate()
        server.process.wait(LAST_RESORT)
        wait_until(lambda: not server.processes())


def _kill(server: Server) -> None:
    def ended() -> bool:
        left = server.processes()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    wait_until(ended)
    server.process.wait(LAST_RESORT)
