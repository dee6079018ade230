"""What one round of the soak does. Each draws everything from the dice of its seed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import torch

import tensorizer_ops
from support.faults import FAULTS, faulty_server
from support.places import SINKS, SOURCES, From, World
from support.process import fork, fork_python, wait
from support.relay import relay
from support.samples import random_model, same
from tensorizer_ops import Hashes

KEY = {"key": "named:soak"}


class Stopped(Exception):
    """What a progress function raises to cancel a job."""


@dataclass
class Model:
    """Tensors, and how they are saved."""

    tensors: dict[str, torch.Tensor]
    hashes: Any
    encrypted: bool
    options: dict[str, Any] = field(default_factory=dict)

    def save(self, uri: str, options: Mapping[str, str], **more: Any) -> None:
        tensorizer_ops.save(
            uri, self.tensors, hashes=self.hashes, options={**self.options, **options}, **more
        )

    def stored(self, folder: Path) -> bytes:
        path = folder / "stored"
        self.save(str(path), {})
        data = path.read_bytes()
        path.unlink()
        return data

    def reads(self) -> dict[str, str]:
        return KEY if self.encrypted else {}

    def verifies(self) -> Any:
        return "all" if self.encrypted or self.hashes != "none" else "none"


def draw(dice: random.Random, *, safetensors: bool = True, encrypted: bool | None = None) -> Model:
    """Returns a random model; one of three is larger than the pieces that are read at a time."""
    tensors = random_model(dice)
    if dice.randrange(3) == 0:
        count = dice.randrange(1, 12 << 20)
        large = torch.arange(count // 8 + 1).view(torch.uint8)[:count]
        tensors["large"] = large ^ dice.randrange(256)
    hashes = dice.choice(get_args(Hashes))
    if encrypted is None:
        encrypted = dice.randrange(3) == 0
    options: dict[str, Any] = {}
    if encrypted:
        options = dict(KEY)
        hashes = dice.choice(["all", "none"])
    elif safetensors and dice.randrange(2):
        options = {"format": "safetensors"}
        hashes = dice.choice(["sha256", "chunked", "all+chunked", "none"])
    return Model(tensors, hashes, encrypted, options)


def compare(loaded: Mapping[str, torch.Tensor], model: Model) -> None:
    assert loaded.keys() == model.tensors.keys()
    for name, tensor in model.tensors.items():
        assert same(loaded[name], tensor), f"{name!r} has other bits"


def compare_one_of(source: From, models: list[Model]) -> Model:
    """Loads a file, compares it with the model that it has by its names, and returns that."""
    for model in models:
        try:
            options = {**model.reads(), **source.options}
            loaded = tensorizer_ops.load(source.uri, options=options, copy=True)
        except tensorizer_ops.errors.Crypto:  # another model, with a key or without
            assert models[0].encrypted != models[1].encrypted
            continue
        if loaded.keys() == model.tensors.keys():
            compare(loaded, model)
            return model
    raise AssertionError("the file has none of the models")


def load(dice: random.Random, model: Model, source: From) -> None:
    """Loads in one of the ways that Python has, and compares."""
    uri, given = source.uri, {**model.reads(), **source.options}
    verify = dice.choice(["none", model.verifies()])
    threads = dice.randrange(4)
    # A stream has some dtypes only in front of the data, so what it fills cannot be checked before.
    way = dice.choice(["load", "copy", "reader", *([] if source.sequential else ["into"])])
    if way == "reader":
        with tensorizer_ops.Reader(uri, verify=verify, threads=threads, options=given) as reader:
            compare(reader.load(), model)
    elif way == "into":
        filled = {name: torch.empty_like(t) for name, t in model.tensors.items()}
        tensorizer_ops.load_into(filled, uri, verify=verify, threads=threads, options=given)
        compare(filled, model)
    else:
        compare(
            tensorizer_ops.load(
                uri, verify=verify, threads=threads, options=given, copy=way == "copy"
            ),
            model,
        )


def there_and_back(world: World, dice: random.Random) -> None:
    """Saves to a sink, twice where that replaces, and loads from a source of another kind."""
    sink = dice.choice(list(SINKS))
    # The sink of Redis adds the end of a .tensors file.
    model = draw(dice, safetensors=sink != "redis")
    with SINKS[sink](world) as place:
        for _ in range(dice.randrange(1, 3) if place.replaces else 1):
            model.save(place.uri, place.options, threads=dice.randrange(4))
        data = place.read()
    assert data is not None
    inner = replace(world, folder=world.folder / "back")
    inner.folder.mkdir()
    with SOURCES[dice.choice(list(SOURCES))](inner, data) as source:
        load(dice, model, source)


def from_threads(world: World, dice: random.Random) -> None:
    """Loads different files from different places at once."""
    seeds = [dice.random() for _ in range(4)]

    def one(number: int) -> None:
        own = random.Random(seeds[number])
        inner = replace(world, folder=world.folder / f"{world.folder.name}-{number}")
        inner.folder.mkdir()
        model = draw(own)
        with SOURCES[own.choice(list(SOURCES))](inner, model.stored(inner.folder)) as source:
            load(own, model, source)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))


def in_a_fork(world: World, dice: random.Random) -> None:
    """Loads in a fork of this process, which has loaded before, while this process loads too."""
    model = draw(dice)
    kind = dice.choice([kind for kind in SOURCES if kind != "pipe"])
    with SOURCES[kind](world, model.stored(world.folder)) as source:
        child = fork(lambda: load(random.Random(1), model, source))
        try:
            load(dice, model, source)
        finally:
            status = wait(child)
        assert status == 0


LOAD = """
import sys, torch
import tensorizer_ops
tensorizer_ops.load(sys.argv[1], verify=sys.argv[2])
"""


def in_a_process(world: World, dice: random.Random) -> None:
    """Loads in another process, from a server."""
    model = replace(draw(dice), hashes="all", encrypted=False, options={})
    with SOURCES["http"](world, model.stored(world.folder)) as source:
        fork_python(LOAD, source.uri, "all")


def cancelled(world: World, dice: random.Random) -> None:
    """Cancels a save over a file that exists, and a load, wherever they are by then."""

    def stop(done: int, total: int) -> None:
        raise Stopped

    old = draw(dice, safetensors=False)
    new = draw(dice, safetensors=False, encrypted=old.encrypted)
    sink = dice.choice(["file", "put", "s3", "redis"])
    with SINKS[sink](world) as place:
        old.save(place.uri, place.options)
        with contextlib.suppress(Stopped):
            new.save(place.uri, place.options, progress=stop)
        data = place.read()
    assert data is not None
    inner = replace(world, folder=world.folder / "back")
    inner.folder.mkdir()
    with SOURCES[dice.choice(list(SOURCES))](inner, data) as source:
        if not source.sequential:
            found = set(tensorizer_ops.names(source.uri, options={**old.reads(), **source.options}))
            assert found in (old.tensors.keys(), new.tensors.keys())
        with contextlib.suppress(Stopped):
            tensorizer_ops.load(
                source.uri, options={**old.reads(), **source.options}, progress=stop, threads=2
            )


def killed(world: World, dice: random.Random) -> None:
    """Kills a process that saves again and again; the file is always one of the two models."""
    kind = dice.choice(["file", "file", "s3", "redis"])
    models = [draw(dice, safetensors=kind != "redis") for _ in range(2)]
    with SINKS[kind](world) as place:
        models[0].save(place.uri, place.options)

        def child() -> None:
            while True:
                for model in models:
                    model.save(place.uri, place.options)

        pid = fork(child)
        time.sleep(dice.random() / 4)
        os.kill(pid, signal.SIGKILL)
        assert wait(pid) == -signal.SIGKILL
        time.sleep(0.2)  # a server may still complete what it has received
        world.s3.settle()
        # A kill between the two system calls that put a file in its place leaves its hidden name.
        hidden = list(world.folder.glob(f".tensorizer-{pid}-*"))
        assert len(hidden) <= 1
        for name in hidden:
            name.unlink()
        compare_one_of(From(place.uri, place.options), models)
    # What was sent before the kill stays.
    if kind == "s3":
        world.s3.uploads(abort=True)
    if kind == "redis":
        world.redis.clear()


def broken(world: World, dice: random.Random) -> None:
    """Replaces a file in S3 or Redis, and loads it, while connections to the server end."""
    kind = dice.choice(["s3", "redis"])
    models = [draw(dice, safetensors=False), draw(dice, safetensors=False)]
    port = getattr(world, kind).port
    with SINKS[kind](world) as place, relay(port) as between:

        def through(text: str) -> str:
            return text.replace(f"127.0.0.1:{port}/", f"127.0.0.1:{between.port}/")

        def end_later() -> None:
            between.after(dice.randrange(1 << dice.randrange(8, 25)), between.end_all)

        options = {name: through(text + "/")[:-1] for name, text in place.options.items()}
        options |= {"retries": str(dice.randrange(3))}
        models[0].save(place.uri, place.options)
        end_later()
        with contextlib.suppress(tensorizer_ops.errors.Error):
            models[1].save(through(place.uri), options, threads=dice.randrange(4))
        model = compare_one_of(From(place.uri, place.options), models)
        end_later()
        with contextlib.suppress(tensorizer_ops.errors.Error):
            load(dice, model, From(through(place.uri), options))
    # The response that has the name of an upload may be lost.
    assert len(world.s3.uploads(abort=True)) <= 1


def faulty(world: World, dice: random.Random) -> None:
    """Loads from a server with faults: the right bytes arrive, or an error does."""
    model = draw(dice)
    if model.verifies() == "none":
        model.hashes = "all"
    with faulty_server(model.stored(world.folder)) as server:
        server.meet(dice.choices(FAULTS, k=dice.randrange(1, 5)), dice.randrange(1 << 30))
        given = {**model.reads(), "read_timeout": "0.3"}
        try:
            loaded = tensorizer_ops.load(server.url, verify="all", options=given)
        except tensorizer_ops.errors.Error:
            return
        compare(loaded, model)


def damaged(world: World, dice: random.Random) -> None:
    """Loads a file with a flipped bit, or a shorter one: the right bytes arrive, or an error."""
    model = draw(dice)
    if model.verifies() == "none":
        model.hashes = "all"
    data = bytearray(model.stored(world.folder))
    if dice.randrange(2):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    else:
        del data[dice.randrange(len(data)) :]
    with SOURCES[dice.choice(list(SOURCES))](world, bytes(data)) as source:
        try:
            loaded = tensorizer_ops.load(
                source.uri, verify="all", options={**model.reads(), **source.options}
            )
        except tensorizer_ops.errors.Error:
            return
        compare(loaded, model)


# Those that take long are rare.
ROUNDS: dict[Callable[[World, random.Random], None], int] = {
    there_and_back: 8,
    from_threads: 4,
    in_a_fork: 4,
    in_a_process: 1,
    cancelled: 4,
    killed: 2,
    broken: 3,
    faulty: 4,
    damaged: 4,
}
