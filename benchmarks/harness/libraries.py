"""The libraries to compare: each load and save as a small function, as users would call it.

A library that is not installed, or does not work on this machine, gets a row that says why.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from benchmarks.harness.memory import State

Load = Callable[[str], State]
Save = Callable[[State, str], object]


@dataclass(frozen=True)
class Library:
    """A library with its own file format."""

    name: str
    module: str
    suffix: str
    # Writes the file that the loads read.
    save: Save


@dataclass(frozen=True)
class Peer:
    """One way to load or to save."""

    name: str
    library: Library
    load: Load | None = None
    save: Save | None = None
    # Alternatives; the fastest one in a first round is measured.
    choices: tuple[Peer, ...] = ()
    # Whether it computes checksums, decrypts or encrypts.
    hashes: bool = False
    # How often one process repeats it: a load that only maps a file takes milliseconds.
    repeats: int = 1


def ops_load(**arguments: Any) -> Load:
    return lambda place: torch.ops.tensorizer.load(place, **arguments)


def ops_save(hashes: str = "all", **arguments: Any) -> Save:
    return lambda state, place: torch.ops.tensorizer.save(place, state, hashes=hashes, **arguments)


def tensorizer_load(
    num_readers: int | None, verify: bool = False, ca: str = "", key: bytes = b""
) -> Load:
    """`ca`: the file of the authority that signed the server's certificate."""

    def load(place: str) -> State:
        from tensorizer import DecryptionParams, TensorDeserializer
        from tensorizer.stream_io import CAInfo, open_stream

        file = open_stream(place, certificate_handling=CAInfo(cacert=ca)) if ca else place
        encryption = DecryptionParams.from_key(key) if key else None
        with TensorDeserializer(
            file,
            device="cpu",
            num_readers=num_readers,
            verify_hash=verify,
            encryption=encryption,
        ) as deserializer:
            return dict(deserializer.items())

    return load


def lazy_load(library: str) -> Load:
    """Load every tensor by its key, one after another, as code for tensorizer may do."""

    def load(place: str) -> State:
        deserializer = importlib.import_module(library).TensorDeserializer
        with deserializer(place, device="cpu", lazy_load=True) as tensors:
            return {name: tensors[name] for name in tensors}

    return load


def _tensorizer_save(key: bytes = b"") -> Save:
    def save(state: State, path: str) -> None:
        from tensorizer import EncryptionParams, TensorSerializer

        serializer = TensorSerializer(path, encryption=EncryptionParams(key) if key else None)
        serializer.write_state_dict(state)
        serializer.close()

    return save


def torch_load(mmap: bool) -> Load:
    return lambda path: torch.load(path, weights_only=True, mmap=mmap)


def safetensors_load(path: str) -> State:
    from safetensors.torch import load_file

    return load_file(path)


def _safetensors_save(state: State, path: str) -> None:
    from safetensors.torch import save_file

    save_file(state, path)


def _flashpack_load(parallel: bool) -> Load:
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


def _fast_load(path: str) -> State:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
    loader.add_filenames({0: [path]})
    buffer = loader.copy_files_to_device()
    return {name: buffer.get_tensor(name) for name in buffer.key_to_rank_lidx}


def streamer_load(**environment: str) -> Load:
    def load(place: str) -> State:
        from runai_model_streamer import SafetensorsStreamer

        with mock.patch.dict(os.environ, environment), SafetensorsStreamer() as streamer:
            streamer.stream_file(place, device="cpu")
            return dict(streamer.get_tensors())

    return load


# Our options name keys instead of containing them, so the keys are environment variables.
KEY = bytes(range(32))
os.environ |= {"BENCHMARK_KEY": KEY.hex(), "BENCHMARK_PASSPHRASE": "correct horse battery staple"}
KEYED = {"key": "env:BENCHMARK_KEY"}
_DERIVED = {"key": "passphrase-env:BENCHMARK_PASSPHRASE"}

US = Library("tensorizer_ops", "tensorizer_ops", ".ours.tensors", ops_save("all"))
US_ENCRYPTED = Library(
    "tensorizer_ops, encrypted",
    "tensorizer_ops",
    ".ours.encrypted.tensors",
    ops_save("all", options=KEYED),
)
US_PASSPHRASE = Library(
    "tensorizer_ops, passphrase",
    "tensorizer_ops",
    ".ours.passphrase.tensors",
    ops_save("all", options=_DERIVED | {"kdf": "interactive"}),
)
# The format of safetensors, and the same file as that of the libraries below.
US_SAFETENSORS = Library(
    "tensorizer_ops, safetensors", "tensorizer_ops", ".safetensors", ops_save("none")
)
TENSORIZER = Library("tensorizer", "tensorizer", ".tensors", _tensorizer_save())
TENSORIZER_ENCRYPTED = Library(
    "tensorizer, encrypted", "tensorizer", ".encrypted.tensors", _tensorizer_save(KEY)
)
TORCH = Library("torch", "torch", ".pt", lambda state, path: torch.save(state, path))
SAFETENSORS = Library("safetensors", "safetensors.torch", ".safetensors", _safetensors_save)
FLASHPACK = Library("flashpack", "flashpack", ".flashpack", _flashpack_save)
# They have no file format of their own.
STREAMER = Library("Run:ai streamer", "runai_model_streamer", ".safetensors", _safetensors_save)
FAST = Library("fastsafetensors", "fastsafetensors", ".safetensors", _safetensors_save)

LIBRARIES = (
    *(US, US_SAFETENSORS, US_ENCRYPTED, US_PASSPHRASE, TENSORIZER, TENSORIZER_ENCRYPTED),
    *(TORCH, SAFETENSORS, FLASHPACK, STREAMER, FAST),
)


def _tensorizer_peer(
    name: str, library: Library = TENSORIZER, *, verify: bool = False, key: bytes = b""
) -> Peer:
    choices = tuple(
        Peer(f"{name}, num_readers={n}", library, load=tensorizer_load(n, verify, key=key))
        for n in (1, 2, 4, 8)
    )
    return Peer(name, library, choices=choices, hashes=verify or bool(key))


_MAPPED = 7

# Only for small tensors: the cost of a passphrase does not depend on the size of the tensors.
PASSPHRASE = Peer(
    "us, encrypted, passphrase", US_PASSPHRASE, load=ops_load(options=_DERIVED), hashes=True
)

PEERS = (
    Peer("us, zero-copy", US, load=ops_load(copy=False), repeats=_MAPPED),
    Peer("us, safetensors, zero-copy", US_SAFETENSORS, load=ops_load(), repeats=_MAPPED),
    Peer("us, copy", US, load=ops_load(copy=True)),
    Peer("us, safetensors, copy", US_SAFETENSORS, load=ops_load(copy=True)),
    Peer("us, copy, verify crc32", US, load=ops_load(copy=True, verify="crc32"), hashes=True),
    Peer("us, copy, verify all", US, load=ops_load(copy=True, verify="all"), hashes=True),
    Peer("us, zero-copy, verify all", US, load=ops_load(copy=False, verify="all"), hashes=True),
    _tensorizer_peer("tensorizer"),
    _tensorizer_peer("tensorizer, verify_hash", verify=True),
    Peer("us, encrypted", US_ENCRYPTED, load=ops_load(options=KEYED), hashes=True),
    PASSPHRASE,
    _tensorizer_peer("tensorizer, encrypted", TENSORIZER_ENCRYPTED, key=KEY),
    Peer("torch.load", TORCH, load=torch_load(mmap=False)),
    Peer("torch.load, mmap", TORCH, load=torch_load(mmap=True), repeats=_MAPPED),
    Peer("safetensors", SAFETENSORS, load=safetensors_load, repeats=_MAPPED),
    Peer("flashpack", FLASHPACK, load=_flashpack_load(parallel=False), repeats=_MAPPED),
    Peer("flashpack, parallel read", FLASHPACK, load=_flashpack_load(parallel=True)),
    Peer("Run:ai streamer", STREAMER, load=streamer_load()),
    Peer("fastsafetensors", FAST, load=_fast_load),
    Peer("us, save hashes=none", US, save=ops_save("none")),
    Peer("us, safetensors, save", US_SAFETENSORS, save=ops_save("none")),
    Peer("us, save hashes=crc32", US, save=ops_save("crc32"), hashes=True),
    Peer("us, save hashes=all", US, save=ops_save("all"), hashes=True),
    Peer("us, save encrypted", US_ENCRYPTED, save=US_ENCRYPTED.save, hashes=True),
    Peer("tensorizer, save", TENSORIZER, save=TENSORIZER.save, hashes=True),
    Peer(
        "tensorizer, save encrypted",
        TENSORIZER_ENCRYPTED,
        save=TENSORIZER_ENCRYPTED.save,
        hashes=True,
    ),
    Peer("torch.save", TORCH, save=TORCH.save),
    Peer("safetensors, save", SAFETENSORS, save=_safetensors_save),
    Peer("flashpack, save", FLASHPACK, save=_flashpack_save),
)

# The loader that checks the saves of each library.
CHECKERS: dict[str, Load] = {
    US.name: ops_load(copy=True),
    US_SAFETENSORS.name: ops_load(copy=True),
    US_ENCRYPTED.name: ops_load(options=KEYED),
    TENSORIZER.name: tensorizer_load(2),
    TENSORIZER_ENCRYPTED.name: tensorizer_load(2, key=KEY),
    TORCH.name: torch_load(mmap=False),
    SAFETENSORS.name: safetensors_load,
    FLASHPACK.name: _flashpack_load(parallel=False),
}


def why_not(*modules: str) -> str:
    """Import modules; return the reason if one cannot be imported, otherwise an empty string."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            return f"{type(error).__name__}: {error}"
    return ""
