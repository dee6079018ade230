"""Repeats the ways in which programs load a model, with tensorizer and with tensorizer_ops.

    python -m benchmarks.curves.ways [--quick] [--rounds 25] [--json FILE]

All ways are code for tensorizer, which runs with both libraries. They load 256 MiB onto the CPU.
Every loaded byte is compared with the original, outside of the timing.

  eager       a TensorDeserializer and all its items
  lazy        lazy_load=True, key after key
  module      load_into_module of a module on the meta device
  plaid       plaid_mode=True
  encrypted   with a key
  HTTP        from nginx
  S3          from rclone, which checks signatures
  Redis       from redis-server, as tensorizer stored it

The servers run on the same CPUs, and files are in the page cache.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.compare import Scene, compare
from benchmarks.harness.contenders import TINY, Contender, Setting
from benchmarks.harness.libraries import (
    KEY,
    Model,
    classic_load,
    classic_load_module,
    classic_save,
)
from benchmarks.harness.measure import Task, check
from benchmarks.harness.memory import State
from benchmarks.harness.results import US
from benchmarks.harness.servers import BUCKET, redis_server, s3_server, web_server
from benchmarks.harness.workloads import of_8_mib
from local_servers.s3_server import KEY_ID, SECRET

Way = Callable[[Any, str], State]


def load_s3(library: Any, place: str, *, endpoint: str) -> State:
    with library.stream_io.open_stream(
        place,
        s3_access_key_id=KEY_ID,
        s3_secret_access_key=SECRET,
        s3_endpoint=endpoint,
        force_http=True,
    ) as stream:
        return classic_load(library, stream)


def contenders(setting: Setting) -> Iterator[list[Contender]]:
    from local_servers.classic_redis import classic_save as save_to_redis

    folder, state = setting.directory, setting.state
    libraries = {name: importlib.import_module(name) for name in (US, "tensorizer")}
    ours = libraries[US]
    with ExitStack() as stack:
        web = stack.enter_context(web_server(folder / "web"))
        s3 = stack.enter_context(s3_server(folder / "s3"))
        redis = stack.enter_context(redis_server(folder / "redis"))
        plain, encrypted = web.root / "model.tensors", web.root / "encrypted.tensors"
        module, tiny = web.root / "module.tensors", str(folder / "tiny.tensors")
        object_of_s3 = s3.root / BUCKET / plain.name
        classic_save(ours, state, str(plain))
        classic_save(ours, TINY, tiny)
        classic_save(ours, state, str(encrypted), KEY)
        classic_save(ours, Model(state), str(module))
        object_of_s3.write_bytes(plain.read_bytes())
        save_to_redis(redis, str(folder / "redis.tensors"), "model", state)
        model = Model(state, "meta")  # every process fills its own copy
        from_s3 = partial(load_s3, endpoint=f"http://127.0.0.1:{s3.port}")
        ways: dict[str, tuple[Way, str, Path]] = {
            "eager": (classic_load, str(plain), plain),
            "lazy": (partial(classic_load, lazy_load=True), str(plain), plain),
            "module": (partial(classic_load_module, model=model), str(module), module),
            "plaid": (partial(classic_load, plaid_mode=True), str(plain), plain),
            "encrypted": (partial(classic_load, key=KEY), str(encrypted), encrypted),
            "HTTP": (classic_load, web.url(plain.name), plain),
            "S3": (from_s3, f"s3://{BUCKET}/{plain.name}", object_of_s3),
            "Redis": (classic_load, redis.url("model"), plain),
        }
        found = []
        for name, (way, place, file) in ways.items():
            for label, library in libraries.items():
                task = Task(
                    partial(way, library, place),
                    partial(check, expected=state),
                    partial(classic_load, library, tiny),
                )
                found.append(setting.performs(f"{name}, {label}", task, file))
        yield found


def main() -> None:
    scene = Scene("Ways to load", of_8_mib(256), contenders)
    compare(__doc__, "ways", {"ways": scene}, rounds=25)


if __name__ == "__main__":
    main()
