"""Repeats the ways in which programs load a model, with tensorizer and with tensorizer_ops.

    python -m benchmarks.curves.ways [--quick] [--mib 256] [--rounds 25] [--json FILE]

All ways are code for tensorizer, which runs with both libraries. Every load is a process of its
own, onto the CPU. A round measures each way once with each library. Every loaded byte is compared
with the original, outside of the timing.

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
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import workloads
from benchmarks.harness.contenders import TINY
from benchmarks.harness.libraries import (
    KEY,
    Model,
    classic_load,
    classic_load_module,
    classic_save,
)
from benchmarks.harness.measure import Task, check, measure, prepare_to_fork
from benchmarks.harness.memory import Reserve, State, make_warm, size_of
from benchmarks.harness.results import US, Found, measured, quantile
from benchmarks.harness.servers import BUCKET, redis_server, s3_server, web_server
from benchmarks.harness.tables import table
from local_servers.s3_server import KEY_ID, SECRET

LIBRARIES = (US, "tensorizer")
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


def measure_ways(folder: Path, mebibytes: int, rounds: int) -> Found:
    libraries = {name: importlib.import_module(name) for name in LIBRARIES}
    ours = libraries[US]
    state = workloads.make(workloads.of_8_mib(mebibytes), quick=False)
    reserve = Reserve(size_of(state))
    seconds: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        from local_servers.classic_redis import classic_save as save_to_redis

        web = stack.enter_context(web_server(folder / "web"))
        s3 = stack.enter_context(s3_server(folder / "s3"))
        redis = stack.enter_context(redis_server(folder / "redis"))
        plain, encrypted = web.root / "model.tensors", web.root / "encrypted.tensors"
        module, tiny = web.root / "module.tensors", str(folder / "tiny.tensors")
        classic_save(ours, state, str(plain))
        classic_save(ours, TINY, tiny)
        classic_save(ours, state, str(encrypted), KEY)
        classic_save(ours, Model(state), str(module))
        (s3.root / BUCKET / plain.name).write_bytes(plain.read_bytes())
        save_to_redis(redis, str(folder / "redis.tensors"), "model", state)
        model = Model(state, "meta")  # every process fills its own copy
        endpoint = f"http://127.0.0.1:{s3.port}"
        ways: dict[str, tuple[Way, str]] = {
            "eager": (classic_load, str(plain)),
            "lazy": (partial(classic_load, lazy_load=True), str(plain)),
            "module": (partial(classic_load_module, model=model), str(module)),
            "plaid": (partial(classic_load, plaid_mode=True), str(plain)),
            "encrypted": (partial(classic_load, key=KEY), str(encrypted)),
            "HTTP": (classic_load, web.url(plain.name)),
            "S3": (partial(load_s3, endpoint=endpoint), f"s3://{BUCKET}/{plain.name}"),
            "Redis": (classic_load, redis.url("model")),
        }
        for file in (plain, encrypted, module, s3.root / BUCKET / plain.name):
            make_warm(file)
        for _ in range(rounds):
            for name, (way, place) in ways.items():
                for label, library in libraries.items():
                    task = Task(
                        partial(way, library, place),
                        lambda loaded: check(loaded, state),
                        partial(classic_load, library, tiny),
                    )
                    timing = measure(task, reserve, size_of(state))
                    seconds.setdefault(name, {}).setdefault(label, []).append(timing.ready)
    return {"bytes": size_of(state), "seconds": seconds}


def main() -> None:
    prepare_to_fork()
    found = measured(__doc__, ("mib", 256, 16), 25, measure_ways, "ways")
    lines = []
    for way, of in found["seconds"].items():
        middle = {name: quantile(values, 0.5) for name, values in of.items()}
        ratio = middle["tensorizer"] / middle[US]
        lines.append([way, *(f"{middle[name] * 1e3:.0f} ms" for name in LIBRARIES), f"{ratio:.1f}"])
    print(table(["median load", *LIBRARIES, "times as fast"], lines))


if __name__ == "__main__":
    main()
