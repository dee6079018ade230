"""Loads from web servers: fast ones, ones with slow connections, and distant ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

from benchmarks.harness import workloads
from benchmarks.harness.contenders import TINY, Contender, Setting, best_of, computed, unless
from benchmarks.harness.libraries import (
    SAFETENSORS,
    TENSORIZER,
    US,
    Load,
    lazy_load,
    ops_load,
    ops_save,
    safetensors_load,
    tensorizer_load,
    why_not,
)
from benchmarks.harness.memory import State, size_of
from benchmarks.harness.servers import Web, delay, requests_in_a_row, web_server
from benchmarks.harness.targets import BYTES_PER_SECOND, SLOW_CONNECTIONS

CONNECTIONS = (1, 2, 4, 8, 16)
READERS = (1, 2, 4, 8)


def _our_files(setting: Setting, root: Path) -> Path:
    setting.write(ops_save(), TINY, root / "tiny.tensors")
    return setting.write(ops_save(), setting.state, root / "ours.tensors")


def _fast(setting: Setting, web: Web, secure: bool) -> list[Contender]:
    def url(file: str) -> str:
        return (web.tls_url if secure else web.url)(file)

    ca = web.ca if secure else ""
    state, tiny = setting.state, url("tiny.tensors")
    ours = _our_files(setting, web.root)
    theirs = web.root / "theirs.tensors"
    missing = setting.prepare(
        why_not(TENSORIZER.module), lambda: setting.write(TENSORIZER.save, state, theirs)
    )
    bare_options = ("--ca", ca) if secure else ()
    load = ops_load(options={"ca_file": ca} if secure else {})
    readers = (
        setting.loads(
            f"tensorizer, load, num_readers={n}",
            tensorizer_load(n, ca=ca),
            url(theirs.name),
            tiny,
            state,
            theirs,
        )
        for n in READERS
    )
    return [
        setting.bare_loads(CONNECTIONS, url(ours.name), ours, *bare_options),
        setting.loads("us, load", load, url(ours.name), tiny, state, ours),
        unless(missing, best_of("tensorizer, load", readers, setting.quick)),
    ]


def _safetensors(setting: Setting, web: Web) -> list[Contender]:
    """Return loads of a safetensors file, by us and by way of a file on the disk."""
    state = setting.state
    file = setting.write(ops_save("none"), state, web.root / "theirs.safetensors")
    tiny = setting.write(ops_save("none"), TINY, web.root / "tiny.safetensors")
    local = setting.directory / "local.safetensors"

    def download_and_load(url: str) -> State:
        with urlopen(url) as response, local.open("wb") as out:
            shutil.copyfileobj(response, out, 1 << 20)
        return safetensors_load(str(local))

    def contender(name: str, load: Load) -> Contender:
        return setting.loads(name, load, web.url(file.name), web.url(tiny.name), state, file)

    return [
        contender("us, load safetensors", ops_load()),
        unless(
            why_not(SAFETENSORS.module),
            contender("download, then safetensors", download_and_load),
        ),
    ]


@contextmanager
def http(setting: Setting) -> Iterator[list[Contender]]:
    with web_server(setting.directory) as web:
        yield [*_fast(setting, web, secure=False), *_safetensors(setting, web)]


@contextmanager
def https(setting: Setting) -> Iterator[list[Contender]]:
    with web_server(setting.directory) as web:
        yield _fast(setting, web, secure=True)


@contextmanager
def slow(setting: Setting) -> Iterator[list[Contender]]:
    with web_server(setting.directory, BYTES_PER_SECOND) as web:
        ours = _our_files(setting, web.root)
        whole = setting.write(ops_save(), setting.whole, web.root / "whole.tensors")
        tiny = web.url("tiny.tensors")
        size = size_of(setting.whole)
        contenders = []
        for n in SLOW_CONNECTIONS:
            load = ops_load(options={"connections": str(n)})
            name = f"us, {n} connections"
            contenders += [
                computed(f"{n} x 40 MB/s", size, size / BYTES_PER_SECOND / n),
                # The limit of this machine, with the server on the same CPUs.
                setting.bare_load(f"bare libcurl, {n} connections", n, web.url(ours.name), ours),
                setting.loads(name, load, web.url(ours.name), tiny, setting.state, ours),
            ]
        name += ", one tensor"
        last = setting.loads(name, load, web.url(whole.name), tiny, setting.whole, whole)
        yield [*contenders, last]


@contextmanager
def far(setting: Setting) -> Iterator[list[Contender]]:
    state = workloads.make(workloads.WORKLOADS["small"], quick=False)
    with web_server(setting.directory) as web, delay(web.port, setting.round_trip / 2) as proxy:
        setting.write(ops_save(), TINY, web.root / "tiny.tensors")
        file = setting.write(ops_save(), state, web.root / "small.tensors")
        url = replace(web, port=proxy.port).url(file.name)
        # The warm-up bypasses the proxy, which counts requests.
        load = setting.loads("us, load", ops_load(), url, web.url("tiny.tensors"), state, file)
        yield [replace(load, rounds=lambda: requests_in_a_row(proxy.exchanges()))]


@contextmanager
def lazy(setting: Setting) -> Iterator[list[Contender]]:
    state = workloads.make(workloads.LAZY, setting.quick)
    with web_server(setting.directory) as web, delay(web.port, setting.round_trip / 2) as proxy:
        setting.write(ops_save(), TINY, web.root / "tiny.tensors")
        file = setting.write(ops_save(), state, web.root / "small.tensors")
        url = replace(web, port=proxy.port).url(file.name)
        contenders = []
        for name, library in (("us", US), ("tensorizer", TENSORIZER)):
            load = lazy_load(library.module)
            tiny = web.url("tiny.tensors")
            contender = setting.loads(f"{name}, key after key", load, url, tiny, state, file)
            contender = replace(contender, rounds=lambda: requests_in_a_row(proxy.exchanges()))
            contenders.append(unless(why_not(library.module), contender))
        yield contenders
