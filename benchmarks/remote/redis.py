"""Loads from and saves to Redis, which keeps its values in memory and writes nothing to disk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness.contenders import TINY, Contender, Setting, unless
from benchmarks.harness.libraries import (
    TENSORIZER,
    Load,
    Save,
    ops_load,
    ops_save,
    tensorizer_load,
    why_not,
)
from benchmarks.harness.measure import check
from benchmarks.harness.memory import State
from benchmarks.harness.servers import redis_server

if TYPE_CHECKING:
    from local_servers.redis_server import RedisServer


def _tensorizer_save(server: RedisServer, path: str, state: State, prefix: str) -> None:
    from local_servers.classic_redis import classic_save

    classic_save(server, path, prefix, state)


def _check_saved(server: RedisServer, load: Load, state: State, prefix: str) -> None:
    check(load(server.url(prefix)), state)
    with server.client() as client:
        client.delete(*client.scan_iter(f"{prefix}*"))


def redis(setting: Setting) -> Iterator[list[Contender]]:
    half = list(setting.state.items())[: len(setting.state) // 2]
    state = dict(half)
    with redis_server(setting.directory) as server:

        def both(name: str, load: Load, save: Save, missing: str = "") -> list[Contender]:
            """Return a load and a save; the load reads a file that `save` has written."""
            model, tiny = f"{name}-model", f"{name}-tiny"

            def write() -> None:
                setting.write(save, state, model)
                setting.write(save, TINY, tiny)

            missing = setting.prepare(missing, write)
            loads = setting.loads(f"{name}, load", load, server.url(model), server.url(tiny), state)
            checked = partial(_check_saved, server, load, state)
            saves = setting.saves(f"{name}, save", save, checked, state)
            return [unless(missing, loads), unless(missing, saves)]

        our_save = ops_save()
        their_save = partial(_tensorizer_save, server, str(setting.directory / "saved.tensors"))
        us = both("us", ops_load(), lambda tensors, name: our_save(tensors, server.url(name)))
        missing = why_not(TENSORIZER.module)
        them = both("tensorizer", tensorizer_load(None), their_save, missing)
        yield [us[0], them[0], us[1], them[1]]
