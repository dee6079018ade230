"""PyTorch checkpoints, in one file or in the shards that transformers writes."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from typing import Any

import torch

from tensorizer_ops import errors
from tensorizer_ops._targets import local_path

_INDEX = "pytorch_model.bin.index.json"
_ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".bin.index.json")
# An index is a few hundred bytes a tensor.
_LONGEST_INDEX = 100_000_000


def find(source: str) -> str | None:
    """Return the path of the checkpoint or index that ``source`` names, or None if it is none.

    In a folder, files of the other formats come first.
    """
    path = local_path(source)
    if path is None:
        return None
    if os.path.isdir(path):
        names = os.listdir(path)
        if any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
            return None
        for name in (_INDEX, "pytorch_model.bin"):
            if name in names:
                return os.path.join(path, name)
        return None
    if not path.endswith(_ENDINGS) or not os.path.isfile(path) or _is_tensors(path):
        return None
    return path


def load(path: str, entry: str | None) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Load the tensors of a checkpoint, mapped if possible; return also what is left out."""
    if not path.endswith(".json"):
        return _tensors_of(path, _load_file(path), entry)
    tensors: dict[str, torch.Tensor] = {}
    left_out: list[str] = []
    for shard in _shards(path):
        found, others = _tensors_of(shard, _load_file(shard), entry)
        tensors.update(found)
        left_out += others
    return tensors, left_out


def _is_tensors(path: str) -> bool:
    """Return whether a file is of this library's formats, whatever its name."""
    with open(path, "rb") as file:
        start = file.read(9)
    return start.startswith(b"|TZR|") or start[8:] == b"{"


def _load_file(path: str) -> object:
    try:
        # Only checkpoints in zip files can be mapped, which torch has written since 1.6.
        mapped = zipfile.is_zipfile(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except OSError:
        raise
    except Exception as error:
        # Torch's message is several lines, with advice to run the code in the file.
        raise errors.InvalidFormat(
            f"{path!r} cannot be loaded as a PyTorch checkpoint of tensors alone: "
            + str(error).partition("\n")[0],
        ) from error


def _tensors_of(
    path: str, loaded: object, entry: str | None
) -> tuple[dict[str, torch.Tensor], list[str]]:
    if not isinstance(loaded, Mapping):
        raise _refused(path, f"it holds {type(loaded).__name__}, and no dict of tensors")
    if entry is not None:
        if not isinstance(loaded.get(entry), Mapping):
            raise _refused(path, f"it has no dict of tensors in {entry!r}")
        return _split(path, loaded[entry])
    if any(isinstance(value, torch.Tensor) for value in loaded.values()):
        return _split(path, loaded)
    nested = [key for key, value in loaded.items() if _has_tensors(value)]
    for usual in ("state_dict", "model_state_dict", "model"):
        if usual in nested:
            nested = [usual]
    if len(nested) != 1:
        known = ", ".join(repr(key) for key in nested) or "none"
        raise _refused(path, f"choose the entry that has the tensors by --entry (found: {known})")
    tensors, others = _split(path, loaded[nested[0]])
    return tensors, [str(key) for key in loaded if key != nested[0]] + others


def _has_tensors(value: object) -> bool:
    return isinstance(value, Mapping) and any(isinstance(v, torch.Tensor) for v in value.values())


def _split(path: str, values: Mapping[Any, Any]) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Return the tensors, and the names of everything else."""
    tensors = {str(key): value for key, value in values.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise _refused(path, "it has no tensors")
    return tensors, [str(key) for key, value in values.items() if str(key) not in tensors]


def _shards(index: str) -> list[str]:
    with open(index, "rb") as file:
        text = file.read(_LONGEST_INDEX + 1)
    try:
        if len(text) > _LONGEST_INDEX:
            raise ValueError("it is too long")
        names = sorted(set(json.loads(text)["weight_map"].values()))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise _refused(index, f"it is not the index of a sharded checkpoint ({error})") from None
    for name in names:
        if not isinstance(name, str) or os.path.basename(name) != name or not name.strip("."):
            raise _refused(index, f"the shard {name!r} is not a file beside it")
    return [os.path.join(os.path.dirname(index), name) for name in names]


def _refused(path: str, why: str) -> errors.InvalidFormat:
    return errors.InvalidFormat(f"{path!r}: {why}")
