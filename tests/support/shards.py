"""Writes sharded models as transformers does, with the safetensors library."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]


def write_shards(
    folder: Path, shards: list[Tensors], metadata: dict[str, str] | None = None
) -> Path:
    """Save a model as transformers does, with the safetensors library, and return its index."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / name, metadata=metadata)
        weights.update(dict.fromkeys(shard, name))
    size = sum(t.nbytes for shard in shards for t in shard.values())
    index = {"metadata": {"total_size": size}, "weight_map": weights}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return path


def split(model: Tensors, count: int, seed: int = 0) -> list[Tensors]:
    """Split a model into shards at random, none of them empty."""
    dice = random.Random(seed)
    names = list(model)
    dice.shuffle(names)
    cuts = sorted(dice.sample(range(1, len(names)), count - 1))
    parts = zip([0, *cuts], [*cuts, len(names)], strict=True)
    return [{name: model[name] for name in names[begin:end]} for begin, end in parts]
