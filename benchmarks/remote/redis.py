"""Loads from and saves to Redis, which keeps its values in memory and writes nothing to disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.harness.contenders import TINY, Contender, Setting
from benchmarks.harness.libraries import (
    Load,
    Save,
    ops_load,
    ops_save,
    tensorizer_load,
)
from benchmarks.harness.measure import check
from benchmarks.harness.memory import State
from local_servers.redis_server import redis_server


def redis(whole: Setting) -> Iterator[list[Contender]]:
    setting = replace(whole, state=dict([*whole.state.items()][: len(whole.state) // 2]))
    with redis_server(setting.directory) as server:

        def both(name: str, load: Load, save: Save) -> list[Contender]:
            """Return a load and a save; the load reads a file that `save` has written."""
            model, tiny = f"{name}-model", f"{name}-tiny"

            def check_saved(prefix: str) -> None:
                check(load(server.url(prefix)), setting.state)
                with server.client() as client:
                    client.delete(*client.scan_iter(f"{prefix}*"))

            setting.write(save, model)
            setting.write(save, tiny, TINY)
            loads = setting.loads(f"{name}, load", load, server.url(model), server.url(tiny))
            saves = setting.saves(f"{name}, save", save, check_saved)
            return [loads, saves]

        def their_save(state: State, prefix: str) -> None:
            from local_servers.classic_redis import classic_save

            classic_save(server, str(setting.directory / "saved.tensors"), prefix, state)

        us = both("us", ops_load(), lambda state, name: ops_save()(state, server.url(name)))
        them = both("tensorizer", tensorizer_load(None), their_save)
        yield [us[0], them[0], us[1], them[1]]
