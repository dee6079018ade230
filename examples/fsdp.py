"""Trains with FSDP, and saves every ten steps; the next run goes on, with any number of ranks:

torchrun --nproc-per-node 2 examples/fsdp.py --steps 20
torchrun --nproc-per-node 4 examples/fsdp.py --steps 40
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tensorizer_ops import checkpoint

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", nargs="?", default="checkpoint", help="of the checkpoint")
parser.add_argument("--steps", type=int, default=20, help="in all runs together")
arguments = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def state_of(step: int) -> dict[str, object]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "step": step}


given = torch.linspace(-1, 1, 64).view(4, 16)
start = 0
if Path(arguments.folder, "checkpoint.tensors").exists():
    state = checkpoint.load(arguments.folder, state_of(0))  # each rank reads its shards
    parts = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
    set_state_dict(model, optimizer, **parts)
    start = state["step"]
for step in range(start, arguments.steps):
    optimizer.zero_grad()
    model(given).square().mean().backward()
    optimizer.step()
    if (step + 1) % 10 == 0:
        checkpoint.save(arguments.folder, state_of(step + 1))  # all ranks call this
with torch.no_grad():
    loss = model(given).square().mean().item()
if dist.get_rank() == 0:
    print(
        f"from step {start} to {arguments.steps} on {dist.get_world_size()} ranks: loss {loss:.3e}"
    )
dist.destroy_process_group()
