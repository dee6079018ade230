"""Repeats the ways in which programs load a model, with tensorizer and with tensorizer_ops.

    python -m benchmarks.curves.ways [--quick] [--workloads ways,small] [--rounds 25] [--json FILE]

All of it is code for tensorizer, which runs with both libraries. Each measurement is a process of
its own, and every loaded or saved byte is compared with the original, outside of the timing.

  ways          256 MiB onto the CPU:
    eager       a TensorDeserializer and all its items
    lazy        lazy_load=True, key after key
    module      load_into_module of a module on the meta device
    plaid       plaid_mode=True
    encrypted   with a key
    HTTP        from nginx
    S3          from rclone, which checks signatures
    Redis       from redis-server, as tensorizer stored it
  transformer   a gigabyte in a transformer's shapes: saved, loaded, loaded from a BytesIO, and
                loaded into a module on the meta device; and the bare reads of its file
  small         3,000 tensors of 1 KiB: saved and loaded

The servers run on the same CPUs, and files are in the page cache.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.bare import READ
from benchmarks.harness.compare import Scene, compare
from benchmarks.harness.contenders import TINY, Contender, Setting
from benchmarks.harness.libraries import (
    KEY,
    Model,
    classic_load,
    classic_load_module,
    classic_save,
    ops_load,
)
from benchmarks.harness.measure import Task, check, saving
from benchmarks.harness.memory import PAGE, State
from benchmarks.harness.results import US
from benchmarks.harness.servers import web_server
from benchmarks.harness.workloads import CLASSIC, SMALL, of_8_mib
from local_servers.redis_server import redis_server
from local_servers.s3_server import KEY_ID, SECRET, s3_server

# A load, what it loads from, and the file that is in the page cache then.
Way = tuple[Callable[[Any, Any], State], Any, Path]


def libraries() -> dict[str, Any]:
    return {name: importlib.import_module(name) for name in (US, "tensorizer")}


def write(setting: Setting, path: Path, key: bytes = b"") -> Path:
    return setting.write(partial(classic_save, libraries()[US], key=key), path)


def write_module(setting: Setting, path: Path) -> Path:
    ours = libraries()[US]
    return setting.write(lambda state, at: classic_save(ours, Model(state), at), path)


def loads(setting: Setting, ways: dict[str, Way]) -> list[Contender]:
    """Return the loads of both libraries by each way."""
    save = partial(classic_save, libraries()[US])
    tiny = str(setting.write(save, setting.directory / "tiny.tensors", TINY))

    def warm_up(library: Any, place: Any) -> None:
        check(classic_load(library, tiny), TINY)
        if isinstance(place, bytes):
            place[::PAGE]  # touches every page

    return [
        setting.performs(
            f"{name}, {label}",
            Task(
                partial(load, library, place),
                partial(check, expected=setting.state),
                partial(warm_up, library, place),
            ),
            file,
            setting.repeats,
        )
        for name, (load, place, file) in ways.items()
        for label, library in libraries().items()
    ]


def saves(setting: Setting) -> list[Contender]:
    found = []
    for label, library in libraries().items():
        save, place = partial(classic_save, library), setting.directory / label
        warm_up = partial(save, TINY, str(setting.directory / "saved-tiny.tensors"))
        task = saving(save, ops_load(), setting.state, place, warm_up)
        found.append(setting.performs(f"save, {label}", task, None, setting.repeats))
    return found


def load_s3(library: Any, place: str, *, endpoint: str) -> State:
    with library.stream_io.open_stream(
        place,
        s3_access_key_id=KEY_ID,
        s3_secret_access_key=SECRET,
        s3_endpoint=endpoint,
        force_http=True,
    ) as stream:
        return classic_load(library, stream)


def load_buffer(library: Any, contents: bytes) -> State:
    return classic_load(library, io.BytesIO(contents))


def into_module(setting: Setting) -> Callable[[Any, Any], State]:
    # Every process fills its own copy.
    return partial(classic_load_module, model=Model(setting.state, "meta"))


def of_ways(setting: Setting) -> Iterator[list[Contender]]:
    from local_servers.classic_redis import classic_save as save_to_redis

    folder = setting.directory
    with ExitStack() as stack:
        web = stack.enter_context(web_server(folder / "web"))
        s3 = stack.enter_context(s3_server(folder / "s3"))
        redis = stack.enter_context(redis_server(folder / "redis"))
        plain = write(setting, web.root / "model.tensors")
        encrypted = write(setting, web.root / "encrypted.tensors", KEY)
        module = write_module(setting, web.root / "module.tensors")
        object_of_s3 = s3.root / "bucket" / plain.name
        object_of_s3.write_bytes(plain.read_bytes())
        save_to_redis(redis, str(folder / "redis.tensors"), "model", setting.state)
        from_s3 = partial(load_s3, endpoint=f"http://127.0.0.1:{s3.port}")
        yield loads(
            setting,
            {
                "eager": (classic_load, str(plain), plain),
                "lazy": (partial(classic_load, lazy_load=True), str(plain), plain),
                "module": (into_module(setting), str(module), module),
                "plaid": (partial(classic_load, plaid_mode=True), str(plain), plain),
                "encrypted": (partial(classic_load, key=KEY), str(encrypted), encrypted),
                "HTTP": (classic_load, web.url(plain.name), plain),
                "S3": (from_s3, f"s3://bucket/{plain.name}", object_of_s3),
                "Redis": (classic_load, redis.url("model"), plain),
            },
        )


def of_transformer(setting: Setting) -> Iterator[list[Contender]]:
    path = write(setting, setting.directory / "model.tensors")
    module = write_module(setting, setting.directory / "module.tensors")
    ways: dict[str, Way] = {
        "load": (classic_load, str(path), path),
        "load from a BytesIO": (load_buffer, path.read_bytes(), path),
        "load_into_module": (into_module(setting), str(module), module),
    }
    yield [*loads(setting, ways), *saves(setting), setting.limit(READ, path)]


def of_small(setting: Setting) -> Iterator[list[Contender]]:
    path = write(setting, setting.directory / "model.tensors")
    yield [*loads(setting, {"load": (classic_load, str(path), path)}), *saves(setting)]


def main() -> None:
    scenes = {
        "ways": Scene("Ways to load", of_8_mib(256), of_ways, rounds=25),
        "transformer": Scene("a gigabyte in a transformer's shapes", CLASSIC, of_transformer, 5),
        "small": Scene("3,000 tensors of 1 KiB", SMALL, of_small, rounds=5),
    }
    compare(__doc__, "ways", scenes)


if __name__ == "__main__":
    main()
