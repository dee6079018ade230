"""The ways to load that the demo measures: those of tensorizer_ops, and of other libraries.

Each takes a place and returns how long its fastest load took. All of them check every byte.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
from places import Place

import tensorizer_ops

State = dict[str, torch.Tensor]
Package = Callable[[torch.Tensor], torch.Tensor]

ROUNDS = 3


def check(loaded: State, expected: State) -> None:
    """Raise an error unless both have the same names, shapes, element types and bytes."""
    if loaded.keys() != expected.keys():
        raise AssertionError("the loaded names differ from the saved ones")
    for name, tensor in expected.items():
        other = loaded[name].detach()
        if other.dtype != tensor.dtype or not torch.equal(
            other.view(torch.uint8), tensor.view(torch.uint8)
        ):
            raise AssertionError(f"{name} differs from the saved tensor")


def fastest(load: Callable[[], State], expected: State) -> float:
    """Return the seconds of the fastest load of some, after one that is not counted."""
    check(load(), expected)
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        loaded = load()
        best = min(best, time.perf_counter() - start)
        check(loaded, expected)
        del loaded
    return best


def in_memory(loaded: State, place: Place) -> State:
    """Read each page of what was mapped, so that the bytes are in memory as after other loads."""
    if not place.copy:
        for tensor in loaded.values():
            tensor.view(torch.uint8).flatten()[:: mmap.PAGESIZE].sum()
    return loaded


# -- tensorizer_ops --------------------------------------------------------------------------------


def save(place: Place, state: State) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        tensorizer_ops.save(
            place.target or place.uri, state, hashes=place.hashes, options=place.options
        )
        best = min(best, time.perf_counter() - start)
    return best


def in_python(place: Place, state: State) -> float:
    def load() -> State:
        return in_memory(
            tensorizer_ops.load(
                place.uri, verify=place.verify, copy=place.copy, options=place.options
            ),
            place,
        )

    return fastest(load, state)


@torch.jit.script
def scripted(uri: str, verify: str, options: dict[str, str]) -> dict[str, torch.Tensor]:
    return torch.ops.tensorizer.load(uri, verify=verify, copy=True, options=options)


def in_torchscript(place: Place, state: State) -> float:
    return fastest(lambda: scripted(place.uri, place.verify, place.options), state)


def compiled(place: Place, state: State) -> float:
    torch.compiler.reset()

    @torch.compile(fullgraph=True)
    def load() -> State:
        return torch.ops.tensorizer.load(
            place.uri, verify=place.verify, copy=True, options=place.options
        )

    return fastest(load, state)


def into_package(path: Path, state: State) -> Callable[[Place, State], float]:
    """Return a way that fills an AOTInductor package, which was compiled without weights.

    A package shows its weights only by what it computes: the output must be that of the same
    package filled by torch, bit for bit.
    """
    package = torch._inductor.aoti_load_package(str(path))
    width = state["0.weight"].shape[1]
    x = torch.rand(1, width)
    nothing = {name: torch.zeros_like(tensor) for name, tensor in state.items()}

    def fill_by_torch(weights: State) -> None:
        package.load_constants(weights, check_full_update=True)

    fill_by_torch(state)
    expected = package(x)

    def way(place: Place, _: State) -> float:
        best = float("inf")
        for _ in range(ROUNDS + 1):
            fill_by_torch(nothing)
            start = time.perf_counter()
            tensorizer_ops.load_constants(
                package, place.uri, verify=place.verify, options=place.options
            )
            best = min(best, time.perf_counter() - start)
            if not torch.equal(package(x), expected):
                raise AssertionError("the output of the package differs")
        return best

    return way


def by_program(program: Path, folder: Path) -> Callable[[Place, State], float]:
    """Return a way that runs a C++ program, which saves what it has loaded to another file."""

    def way(place: Place, state: State) -> float:
        copy = folder / "copy.tensors"
        options = [f"{name}={value}" for name, value in place.options.items()]
        command = [program, place.uri, copy, place.verify, str(ROUNDS + 1), *options]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(f"{program} failed: {done.stderr}")
        check(tensorizer_ops.load(copy), state)
        copy.unlink()
        return float(done.stdout)

    return way


# -- other libraries -------------------------------------------------------------------------------


def with_tensorizer(place: Place, state: State) -> float | None:
    """Load with tensorizer, which knows neither digests of chunks nor Redis over TLS."""
    from tensorizer import DecryptionParams, TensorDeserializer, stream_io

    if not place.uri.endswith(".tensors") or place.hashes != "all":
        return None
    stored = place.options
    key = stored.get("key")
    decryption = None
    if key is not None:
        decryption = DecryptionParams.from_key(Path(key.removeprefix("file:")).read_bytes())

    def load() -> State:
        source: object = place.uri
        if place.uri.startswith("s3:"):
            source = stream_io.open_stream(
                place.uri,
                "rb",
                s3_access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
                s3_secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
                s3_endpoint=stored["s3_endpoint"].removeprefix("http://"),
                force_http=True,
            )
        with TensorDeserializer(
            source, device="cpu", verify_hash=place.verify == "all", encryption=decryption
        ) as deserializer:
            return dict(deserializer.items())

    return fastest(load, state)


def with_safetensors(place: Place, state: State) -> float | None:
    """Load with safetensors, by its backend that does what the place asks for."""
    from safetensors.torch import load_file

    if not place.uri.endswith(".safetensors"):
        return None
    backend = "pread" if place.copy else "mmap"
    return fastest(lambda: in_memory(load_file(place.uri, backend=backend), place), state)


def with_torch(place: Place, state: State) -> float | None:
    if not place.is_of_torch:
        return None
    torch.save(state, place.uri)
    return fastest(lambda: torch.load(place.uri, weights_only=True), state)
