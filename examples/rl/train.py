"""Trains a small model, and gives each step to a running server of vLLM.

python examples/rl/train.py MODEL VERSIONS SERVER
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from typing import Any

import torch
from transformers import AutoModelForCausalLM

import tensorizer_ops


def post(url: str, body: dict[str, Any] | None = None) -> None:
    data = json.dumps(body or {}).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    urllib.request.urlopen(request).close()


def main(folder: str, place: str, server: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    init = {"uri": place, "interval": 0.05}
    post(f"{server}/init_weight_transfer_engine", {"init_info": init})
    with tensorizer_ops.Publisher(place) as publisher:
        for step in range(1, 6):
            tokens = torch.randint(512, (4, 32))  # what the server has sampled, and a reward
            model(tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            state = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
            version = publisher.publish(state, step=step).number
            time.sleep(0.2)  # so that it has come before the pause
            begin = time.monotonic()
            post(f"{server}/pause?mode=keep")
            post(f"{server}/start_weight_update")
            post(f"{server}/update_weights", {"update_info": {"version": version}})
            post(f"{server}/finish_weight_update", {"weight_version": str(version)})
            post(f"{server}/resume")
            print(f"step {step}: version {version}, paused for {time.monotonic() - begin:.2f} s")
    post(f"{server}/shutdown_weight_transfer_engine")


if __name__ == "__main__":
    main(*sys.argv[1:])
