"""Loads from web servers: fast ones, ones with slow connections, and distant ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from urllib.request import urlopen

from benchmarks.harness.contenders import TINY, Contender, Setting, best_of
from benchmarks.harness.libraries import (
    TENSORIZER,
    US,
    Load,
    classic_load,
    ops_load,
    ops_save,
    safetensors_load,
    tensorizer_load,
)
from benchmarks.harness.memory import State
from benchmarks.harness.servers import web_server
from local_servers.delay import delay, requests_in_a_row
from local_servers.web import Web

CONNECTIONS = (1, 2, 4, 8, 16)
READERS = (1, 2, 4, 8)


def _our_files(setting: Setting, root: Path) -> Path:
    setting.write(ops_save(), root / "tiny.tensors", TINY)
    return setting.write(ops_save(), root / "ours.tensors")


def _fast(setting: Setting, web: Web, secure: bool) -> list[Contender]:
    url, ca = (web.tls_url, web.ca) if secure else (web.url, "")
    tiny = url("tiny.tensors")
    ours = _our_files(setting, web.root)
    theirs = setting.write(TENSORIZER.save, web.root / "theirs.tensors")
    load = ops_load(options={"ca_file": ca} if secure else {})
    readers = (
        setting.loads(
            f"tensorizer, load, num_readers={n}",
            *(tensorizer_load(n, ca=ca), url(theirs.name), tiny, theirs),
        )
        for n in READERS
    )
    return [
        setting.bare_loads(CONNECTIONS, url(ours.name), ours, ca=ca),
        setting.loads("us, load", load, url(ours.name), tiny, ours),
        best_of("tensorizer, load", readers, setting.quick),
    ]


def http(setting: Setting) -> Iterator[list[Contender]]:
    with web_server(setting.directory) as web:
        file = setting.write(ops_save("none"), web.root / "theirs.safetensors")
        tiny = setting.write(ops_save("none"), web.root / "tiny.safetensors", TINY)
        local = setting.directory / "local.safetensors"

        def download_and_load(url: str) -> State:
            with urlopen(url) as response, local.open("wb") as out:
                shutil.copyfileobj(response, out, 1 << 20)
            return safetensors_load(str(local))

        places = (web.url(file.name), web.url(tiny.name), file)
        yield [
            *_fast(setting, web, secure=False),
            setting.loads("us, load safetensors", ops_load(), *places),
            setting.loads("download, then safetensors", download_and_load, *places),
        ]


def https(setting: Setting) -> Iterator[list[Contender]]:
    with web_server(setting.directory) as web:
        yield _fast(setting, web, secure=True)


def _distant(setting: Setting, loads: dict[str, Load]) -> Iterator[list[Contender]]:
    """Yield loads by their names, from a distant server."""
    with web_server(setting.directory) as web, delay(web.port, setting.round_trip / 2) as proxy:
        file = _our_files(setting, web.root)
        # The warm-up bypasses the proxy, which counts requests.
        places = replace(web, port=proxy.port).url(file.name), web.url("tiny.tensors")
        yield [
            replace(
                setting.loads(name, load, *places, file),
                requests=lambda: requests_in_a_row(proxy.exchanges()),
            )
            for name, load in loads.items()
        ]


def far(setting: Setting) -> Iterator[list[Contender]]:
    return _distant(setting, {"us, load": ops_load()})


def lazy(setting: Setting) -> Iterator[list[Contender]]:
    loads: dict[str, Load] = {
        f"{name}, key after key": partial(classic_load, import_module(one.module), lazy_load=True)
        for name, one in {"us": US, "tensorizer": TENSORIZER}.items()
    }
    return _distant(setting, loads)
