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

import gc
import importlib
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.charts.letter_values import quantile
from benchmarks.charts.theme import US
from benchmarks.harness import runs
from benchmarks.harness import tables as report
from benchmarks.harness.best import THREADS, Results, measured
from benchmarks.harness.contenders import TINY
from benchmarks.harness.libraries import KEY
from benchmarks.harness.measure import Task, check, measure
from benchmarks.harness.memory import Reserve, State, make_warm, size_of
from benchmarks.harness.servers import KEY_ID, SECRET, redis_server, s3_server, web_server
from benchmarks.local.classic import Model, load, save
from benchmarks.remote.s3 import BUCKET
from local_servers.classic_redis import classic_save

LIBRARIES = (US, "tensorizer")
Way = Callable[[Any, str], State]


def load_with(library: Any, place: Any, **arguments: Any) -> State:
    with library.TensorDeserializer(place, device="cpu", **arguments) as deserializer:
        return dict(deserializer.items())


def load_encrypted(library: Any, place: str) -> State:
    return load_with(library, place, encryption=library.DecryptionParams.from_key(KEY))


def load_s3(library: Any, place: str, *, endpoint: str) -> State:
    with library.stream_io.open_stream(
        place,
        s3_access_key_id=KEY_ID,
        s3_secret_access_key=SECRET,
        s3_endpoint=endpoint,
        force_http=True,
    ) as stream:
        return load_with(library, stream)


def load_module(library: Any, place: str, *, model: Model) -> State:
    with library.TensorDeserializer(place, device="cpu") as deserializer:
        deserializer.load_into_module(model)
    return model.state_dict()


def tensors(mebibytes: int) -> State:
    """Make tensors of 8 MiB with random bits that are numbers."""
    made = {}
    for i in range(max(1, mebibytes // 8)):
        bits = torch.empty(2 << 20, dtype=torch.int32).random_()
        made[f"layers.{i}.weight"] = bits.bitwise_and_(0x3FFFFFFF).view(torch.float32).view(2, -1)
    return made


def measure_ways(folder: Path, mebibytes: int, rounds: int) -> Results:
    libraries = {name: importlib.import_module(name) for name in LIBRARIES}
    ours = libraries[US]
    state = tensors(mebibytes)
    reserve = Reserve(size_of(state))
    seconds: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        web = stack.enter_context(web_server(folder / "web"))
        s3 = stack.enter_context(s3_server(folder / "s3"))
        redis = stack.enter_context(redis_server(folder / "redis"))
        plain, encrypted = web.root / "model.tensors", web.root / "encrypted.tensors"
        save(ours, state, str(plain))
        tiny = str(folder / "tiny.tensors")
        save(ours, TINY, tiny)
        serializer = ours.TensorSerializer(encrypted, encryption=ours.EncryptionParams(KEY))
        serializer.write_state_dict(state)
        serializer.close()
        module = web.root / "module.tensors"
        serializer = ours.TensorSerializer(module)
        serializer.write_module(Model(state))
        serializer.close()
        (s3.root / BUCKET / plain.name).write_bytes(plain.read_bytes())
        classic_save(redis, str(folder / "redis.tensors"), "model", state)
        model = Model(state, "meta")  # every process fills its own copy
        endpoint = f"http://127.0.0.1:{s3.port}"
        ways: dict[str, tuple[Way, str]] = {
            "eager": (load, str(plain)),
            "lazy": (partial(load_with, lazy_load=True), str(plain)),
            "module": (partial(load_module, model=model), str(module)),
            "plaid": (partial(load_with, plaid_mode=True), str(plain)),
            "encrypted": (load_encrypted, str(encrypted)),
            "HTTP": (load, web.url(plain.name)),
            "S3": (partial(load_s3, endpoint=endpoint), f"s3://{BUCKET}/{plain.name}"),
            "Redis": (load, redis.url("model")),
        }
        gc.freeze()  # garbage collection in a forked process would copy every page it visits
        for file in (plain, encrypted, module, s3.root / BUCKET / plain.name):
            make_warm(file)
        for _ in range(rounds):
            for name, (way, place) in ways.items():
                for label, library in libraries.items():
                    task = Task(
                        partial(way, library, place),
                        lambda loaded: check(loaded, state),
                        partial(load_with, library, tiny),
                    )
                    timing = measure(
                        task, repeats=1, threads=THREADS, reserve=reserve, lend=size_of(state)
                    )
                    seconds.setdefault(name, {}).setdefault(label, []).append(timing.ready)
    return {"bytes": size_of(state), "seconds": seconds}


def main() -> None:
    runs.prepare_to_fork()
    found = measured(__doc__, ("mib", 256, 16), 25, measure_ways, "ways")
    lines = []
    for way, of in found["seconds"].items():
        middle = {name: quantile(sorted(values), 0.5) for name, values in of.items()}
        ratio = middle["tensorizer"] / middle[US]
        lines.append([way, *(f"{middle[name] * 1e3:.0f} ms" for name in LIBRARIES), f"{ratio:.1f}"])
    print(report.table(["median load", *LIBRARIES, "times as fast"], lines, 1, markdown=False))


if __name__ == "__main__":
    main()
