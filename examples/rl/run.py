"""Starts a server of vLLM, trains its model beside it, and compares what both have at the end.

    python examples/rl/run.py [FOLDER]

Needs vLLM, and this package in the same environment. FOLDER gets the model and its versions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorizer_ops

PORT = 8123
SERVER = f"http://127.0.0.1:{PORT}"
HERE = Path(__file__).resolve().parent
SIZES = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def save_model(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS)).bfloat16().save_pretrained(folder)


def ask(path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(SERVER + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read() or "null")


@contextmanager
def serving(model: Path, weights: Path) -> Iterator[None]:
    """Run `vllm serve`, from the time when it answers."""
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(model)]
    command += ["--port", str(PORT), "--dtype", "bfloat16", "--max-model-len", "128"]
    command += ["--enforce-eager", "--skip-tokenizer-init", "--load-format", "tensorizer_ops"]
    command += ["--model-loader-extra-config", json.dumps({"uri": str(weights)})]
    command += ["--weight-transfer-config", json.dumps({"backend": "tensorizer_ops"})]
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with (model.parent / "server.log").open("ab") as log:
        server = subprocess.Popen(
            command, env=os.environ | environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        while True:
            try:
                ask("/health")
                break
            except OSError:
                if server.poll() is not None:
                    sys.exit((model.parent / "server.log").read_text())
                time.sleep(0.2)
        yield
    finally:
        server.terminate()
        server.wait()


def tokens() -> Any:
    """Return what the server continues a prompt with."""
    body = {"prompt": [3, 1, 4, 1, 5], "max_tokens": 32, "temperature": 0}
    body |= {"return_token_ids": True, "ignore_eos": True, "detokenize": False}
    return ask("/v1/completions", body)["choices"][0]["token_ids"]


def main(folder: Path) -> None:
    model, place = folder / "model", folder / "versions"
    save_model(model)
    tensorizer_ops.convert(model, folder / "first.tensors")
    with serving(model, folder / "first.tensors"):
        first = tokens()
        train = [sys.executable, str(HERE / "train.py"), str(model), str(place), SERVER]
        subprocess.run(train, check=True)
        last = tokens()
        print("weights of the server:", ask("/weight_info")["weight_version"])
    for path in sorted(place.glob("0*")):
        print(f"{path.name}: {path.stat().st_size} bytes")
    (version,) = tensorizer_ops.follow(place, folder / "last.tensors", patience=0)
    with serving(model, folder / "last.tensors"):
        same = last == tokens()
    print(
        f"version {version.number} in a new server gives", "the same tokens" if same else "others"
    )
    print("they differ from those before the training:", first != last)
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary).resolve())
