"""The libraries to compare: each load and save as a small function, as users would call it.

A library that is not installed, or does not work on this machine, gets a row that says why. Those
that work are imported here, before processes are forked: no measurement contains an import.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

import tensorizer_ops  # noqa: F401, registers the ops
from benchmarks.harness.memory import State

for _name in (
    *("tensorizer", "safetensors.torch", "flashpack", "fastsafetensors", "boto3"),
    *("runai_model_streamer", "runai_model_streamer_s3"),
):
    with suppress(ImportError, OSError):
        importlib.import_module(_name)

Load = Callable[[str], State]
Save = Callable[[State, str], None]


@dataclass(frozen=True)
class Library:
    """A library with its own file format."""

    name: str
    module: str
    suffix: str
    save: Save  # writes the file that the loads read
    load: Load  # reads what the saves have written


def ops_load(**arguments: Any) -> Load:
    return lambda place: torch.ops.tensorizer.load(place, **arguments)


def ops_save(hashes: str = "all", **arguments: Any) -> Save:
    return lambda state, place: torch.ops.tensorizer.save(place, state, hashes=hashes, **arguments)


# -- code for tensorizer, which runs with both libraries -------------------------------------------


class Model(torch.nn.Module):
    """Nested modules with the tensors of a state dict as parameters, optionally on `device`."""

    def __init__(self, state: State, device: str | None = None) -> None:
        super().__init__()
        for name, tensor in state.items():
            *owners, leaf = name.split(".")
            owner: torch.nn.Module = self
            for step in owners:
                if step not in owner._modules:
                    owner.add_module(step, torch.nn.Module())
                owner = owner.get_submodule(step)
            own = tensor.to(device) if device else tensor
            owner.register_parameter(leaf, torch.nn.Parameter(own))


def classic_save(library: Any, what: State | Model, place: str, key: bytes = b"") -> None:
    encryption = library.EncryptionParams(key) if key else None
    serializer = library.TensorSerializer(place, encryption=encryption)
    if isinstance(what, Model):
        serializer.write_module(what)
    else:
        serializer.write_state_dict(what)
    serializer.close()


def classic_load(library: Any, place: Any, key: bytes = b"", **options: Any) -> State:
    encryption = library.DecryptionParams.from_key(key) if key else None
    options = {"device": "cpu", "encryption": encryption, **options}
    with library.TensorDeserializer(place, **options) as deserializer:
        return dict(deserializer.items())


def classic_load_module(library: Any, place: str, model: Model) -> State:
    with library.TensorDeserializer(place, device="cpu") as deserializer:
        deserializer.load_into_module(model)
    return model.state_dict()


def tensorizer_load(num_readers: int | None, ca: str = "", **options: Any) -> Load:
    """`ca`: the file of the authority that signed the server's certificate."""

    def load(place: str) -> State:
        import tensorizer
        from tensorizer.stream_io import CAInfo, open_stream

        file = open_stream(place, certificate_handling=CAInfo(cacert=ca)) if ca else place
        return classic_load(tensorizer, file, num_readers=num_readers, **options)

    return load


# -- the others ------------------------------------------------------------------------------------


def torch_load(mmap: bool) -> Load:
    return lambda path: torch.load(path, weights_only=True, mmap=mmap)


def safetensors_load(path: str, device: str = "cpu", backend: str = "mmap") -> State:
    from safetensors.torch import load_file

    return load_file(path, device=device, backend=backend)


def _safetensors_save(state: State, path: str) -> None:
    from safetensors.torch import save_file

    save_file(state, path)


def flashpack_load(parallel: bool) -> Load:
    def load(path: str) -> State:
        from flashpack.deserialization import iterate_from_flash_tensor, read_flashpack_file

        with mock.patch.dict(os.environ, FLASHPACK_CPU_PARALLEL_READ="1" if parallel else "0"):
            storage, metadata = read_flashpack_file(path, device="cpu")
        return dict(iterate_from_flash_tensor(storage, metadata))

    return load


def _flashpack_save(state: State, path: str) -> None:
    import numpy
    from flashpack import pack_to_file

    # Syncing is disabled: no other library syncs, and the disk is not measured here.
    with mock.patch("os.fsync"), mock.patch.object(numpy.memmap, "flush"):
        pack_to_file(state, path, target_dtype=None)


def fast_load(path: str, device: str = "cpu") -> State:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), device, nogds=device == "cpu")
    loader.add_filenames({0: [path]})
    buffer = loader.copy_files_to_device()
    return {name: buffer.get_tensor(name) for name in buffer.key_to_rank_lidx}


def streamer_load(device: str = "cpu", **environment: str) -> Load:
    def load(place: str) -> State:
        from runai_model_streamer import SafetensorsStreamer

        with mock.patch.dict(os.environ, environment), SafetensorsStreamer() as streamer:
            streamer.stream_file(place, device=device)
            return dict(streamer.get_tensors())

    return load


# Our options name keys instead of containing them, so the keys are environment variables.
KEY = bytes(range(32))
os.environ["BENCHMARK_KEY"] = KEY.hex()
KEYED = {"key": "env:BENCHMARK_KEY"}

US_MODULE = "tensorizer_ops"
US = Library(US_MODULE, US_MODULE, ".ours.tensors", ops_save(), ops_load(copy=True))
US_CHUNKS = Library(
    *("tensorizer_ops, chunks", US_MODULE, ".chunks.tensors"),
    *(ops_save("chunked"), ops_load(copy=True)),
)
# The format of safetensors, and the same file as that of the libraries below.
US_SAFETENSORS = Library(
    *("tensorizer_ops, safetensors", US_MODULE, ".safetensors"),
    *(ops_save("none"), ops_load(copy=True)),
)
TENSORIZER = Library(
    *("tensorizer", "tensorizer", ".tensors"),
    lambda state, path: classic_save(importlib.import_module("tensorizer"), state, path),
    tensorizer_load(2),
)
TORCH = Library(
    *("torch", "torch", ".pt"),
    *(lambda state, path: torch.save(state, path), torch_load(mmap=False)),
)
_SAFETENSORS = (".safetensors", _safetensors_save, safetensors_load)
SAFETENSORS = Library("safetensors", "safetensors.torch", *_SAFETENSORS)
# They have no file format of their own.
STREAMER = Library("Run:ai streamer", "runai_model_streamer", *_SAFETENSORS)
FAST = Library("fastsafetensors", "fastsafetensors", *_SAFETENSORS)
FLASHPACK = Library(
    *("flashpack", "flashpack", ".flashpack", _flashpack_save, flashpack_load(parallel=False)),
)
