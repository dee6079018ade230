"""PyTorch checkpoints, in one file or in the shards that transformers writes."""

from __future__ import annotations

import json
import os
import re
import warnings
import zipfile
from collections.abc import Mapping
from typing import Any

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import kind_of
from tensorizer_ops._base.folder import names_in
from tensorizer_ops._base.targets import Target, local_path

_INDEX = "pytorch_model.bin.index.json"
# A folder with a file that ends so is read as a `.tensors` or safetensors model.
_FIRST = (".tensors", ".safetensors", ".safetensors.index.json")
ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".bin.index.json")
# Where trainers put the weights, next to those of the optimizer and others.
_USUAL = ("state_dict", "model_state_dict", "model")
# How deep entries are searched for tensors, and how many an error names.
_DEEPEST = 5
_MOST_NAMES = 10
# The part of torch's message that names a type which weights_only refuses.
_GLOBAL = re.compile(r"GLOBAL (?:'|`)?([\w.]+)")
# An index is a few hundred bytes a tensor.
_LONGEST_INDEX = 100_000_000


def find(source: Target) -> str | None:
    """Return the path of the checkpoint or index that ``source`` names, or None if it is none.

    In a folder, files of the other formats come first.
    """
    path = local_path(source)
    if path is None:
        return None
    if os.path.isdir(path):
        names = names_in(path)
        if any(name.endswith(_FIRST) for name in names):
            return None
        for name in (_INDEX, "pytorch_model.bin"):
            if name in names:
                return os.path.join(path, name)
        return None
    if not path.endswith(ENDINGS) or not os.path.isfile(path) or _is_tensors(path):
        return None
    return path


def load(path: str, entry: str | None) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Load the tensors of a checkpoint, mapped if possible; return also what a user should know."""
    tensors: dict[str, torch.Tensor] = {}
    notes: list[str] = []
    listed = _listed(path) if path.endswith(".json") else None
    for file in sorted(set(listed.values())) if listed is not None else [path]:
        loaded = _load_file(file)
        if not isinstance(loaded, Mapping):
            raise _refused(file, f"it holds {type(loaded).__name__}, and no dict of tensors")
        chosen, others = _choose(file, loaded, entry)
        if others:
            names = ", ".join(map(repr, others))
            notes.append(f"took {chosen!r}; entry= takes another one: {names}")
        values = _at(loaded, chosen)
        found = _by_name(file, values)
        for name in found:
            if name in tensors:
                raise _refused(path, f"two of its shards have the tensor {name!r}")
        tensors.update(found)
        left_out = [str(key) for key in values if str(key) not in found]
        if chosen:
            first = chosen.partition(".")[0]
            entries = [key for key in map(str, loaded) if key not in (first, *others)]
            left_out = entries + left_out
        if left_out:
            notes.append(f"left out: {', '.join(left_out)}")
    for name, file in (listed or {}).items():
        if name not in tensors:
            raise _refused(file, f"it lacks the tensor {name!r}, which {path!r} lists")
    if bare := [name for name, tensor in tensors.items() if tensor.is_meta]:
        notes.append(f"without data, because they are on the meta device: {', '.join(bare)}")
    return tensors, notes


def _is_tensors(path: str) -> bool:
    """Return whether a file is of this library's formats, whatever its name."""
    with open(path, "rb") as file:
        start = file.read(9)
    return start.startswith(b"|TZR|") or start[8:] == b"{"


def _load_file(path: str) -> object:
    mapped = False
    try:
        # Only checkpoints in zip files can be mapped, which torch has written since 1.6.
        mapped = zipfile.is_zipfile(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an error is one line
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except OSError:
        raise
    except Exception as error:
        raise _refused(
            path,
            f"it cannot be loaded as a PyTorch checkpoint of tensors alone: "
            f"{_why_not(path, mapped, str(error))}",
        ) from error


def _why_not(path: str, zipped: bool, text: str) -> str:
    """Say in one sentence what torch says in several, with advice to run the code in the file."""
    if os.path.getsize(path) == 0:
        return "the file is empty"
    if zipped and any("/code/" in name for name in zipfile.ZipFile(path).namelist()):
        return "it is a TorchScript program; save the state_dict() of what torch.jit.load() returns"
    if named := _GLOBAL.search(text):
        return f"it has an object of {named[1]}; save a state_dict, which has tensors alone"
    return "it is damaged, or torch.save did not write it"


def _choose(path: str, loaded: Mapping[Any, Any], entry: str | None) -> tuple[str, list[str]]:
    """Return the entry that has the tensors, as keys joined by dots, and others that have some.

    The entry ``""`` is the checkpoint itself.
    """
    if entry is not None:
        within = _at(loaded, entry)
        if not isinstance(within, Mapping):
            raise _refused(path, f"it has no dict of tensors in {entry!r}")
        if _has_tensors(within):
            return entry, []
        chosen, others = _choose(path, within, None)
        return _joined(entry, chosen), [_joined(entry, other) for other in others]
    having = [""] if _has_tensors(loaded) else []
    level: dict[str, Mapping[Any, Any]] = {"": loaded}
    found: list[str] = []
    for _ in range(_DEEPEST):
        level = {
            _joined(name, str(key)): value
            for name, values in level.items()
            for key, value in values.items()
            if isinstance(value, Mapping)
        }
        found = [name for name, value in level.items() if _has_tensors(value)]
        if found:
            break
    having += found
    usual = [name for name in _USUAL if name in found]
    if not usual and len(having) > 1:
        names = ", ".join(map(repr, having[:_MOST_NAMES]))
        raise _refused(path, f"choose the entry that has the tensors by entry=: {names}")
    if not having:
        raise _refused(path, "it has no dict of tensors")
    chosen = (usual or having)[0]
    return chosen, [name for name in having if name != chosen]


def _joined(entry: str, key: str) -> str:
    return f"{entry}.{key}" if entry else key


def _at(loaded: Any, entry: str) -> Any:
    """Return what is at an entry: a key, or keys joined by dots; None if there is nothing."""
    if not entry:
        return loaded
    if not isinstance(loaded, Mapping):
        return None
    for key, value in loaded.items():
        if str(key) == entry:
            return value
        if entry.startswith(f"{key}.") and (found := _at(value, entry[len(str(key)) + 1 :])):
            return found
    return None


def _has_tensors(value: Mapping[Any, Any]) -> bool:
    return any(isinstance(v, torch.Tensor) for v in value.values())


def _by_name(path: str, values: Mapping[Any, Any]) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for key, value in values.items():
        if not isinstance(value, torch.Tensor):
            continue
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise _refused(path, f"the key of a tensor is {kind_of(key)}, and no name")
        if str(key) in tensors:
            raise _refused(path, f"two of its tensors would have the name {str(key)!r}")
        tensors[str(key)] = value
    return tensors


def _listed(index: str) -> dict[str, str]:
    """Return the path of the shard that has each tensor, as an index says."""
    with open(index, "rb") as file:
        text = file.read(_LONGEST_INDEX + 1)
    try:
        if len(text) > _LONGEST_INDEX:
            raise ValueError("it is too long")
        shards = dict(json.loads(text)["weight_map"].items())
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise _refused(index, f"it is not the index of a sharded checkpoint ({error})") from None
    if not shards:
        raise _refused(index, "it lists no tensors")
    for name in shards.values():
        if not isinstance(name, str) or os.path.basename(name) != name or not name.strip("."):
            raise _refused(index, f"the shard {name!r} is not a file beside it")
    folder = os.path.dirname(index)
    return {tensor: os.path.join(folder, name) for tensor, name in shards.items()}


def _refused(path: str, why: str) -> errors.InvalidFormat:
    return errors.InvalidFormat(f"{path!r}: {why}")
