"""Loads from and saves to an S3 server; every request is signed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.bare.programs import BareHttp
from benchmarks.harness.contenders import (
    TINY,
    Contender,
    Setting,
    best_of,
    new_name,
    nothing_of,
    same_file,
    unless,
)
from benchmarks.harness.libraries import SAFETENSORS, ops_load, ops_save, streamer_load, why_not
from benchmarks.harness.measure import Task, Timing, check
from benchmarks.harness.memory import State, size_of
from benchmarks.harness.servers import BUCKET, s3_server
from local_servers.s3_server import KEY_ID, S3, SECRET

SIGNED = ("--user", f"{KEY_ID}:{SECRET}")
CONNECTIONS = (2, 4, 8)


def _folder(server: S3) -> Path:
    """Return the folder in which the server keeps the bucket's objects as files."""
    return server.root / BUCKET


def _uri(key: str) -> str:
    return f"s3://{BUCKET}/{key}"


def _url(server: S3, key: str) -> str:
    return f"http://127.0.0.1:{server.port}/{BUCKET}/{key}"


def _check_saved(server: S3, state: State, key: str) -> None:
    place = _folder(server) / key
    check(ops_load(copy=True)(str(place)), state)
    place.unlink()


def _bare_saves(setting: Setting, server: S3, file: Path) -> Contender:
    name = "bare libcurl, save"

    def save(connections: int, _: bool) -> Timing:
        key = new_name()
        setting.settle()
        timing = BareHttp(setting.reserve, SIGNED).save(_url(server, key), file, connections)
        same_file(_folder(server) / key, file)
        (_folder(server) / key).unlink()
        return timing

    size = file.stat().st_size
    choices = (Contender(f"{name}, {n} connections", size, partial(save, n)) for n in CONNECTIONS)
    return best_of(name, choices, setting.quick)


def _boto3(setting: Setting, server: S3, original: Path) -> tuple[Contender, Contender]:
    """Return a download to a file, which is not loaded, and an upload of a file.

    The upload includes writing the file with tensorizer_ops.
    """
    local = setting.directory / "local"

    @cache
    def client() -> Any:
        import boto3

        with mock.patch.dict(os.environ, server.environment()):
            return boto3.client("s3")

    def download(key: str) -> State:
        return nothing_of(client().download_file(BUCKET, key, str(local)))

    def check_file(_: State) -> None:
        same_file(local, original)
        local.unlink()

    def save(state: State, key: str) -> None:
        ops_save()(state, str(local))
        client().upload_file(str(local), BUCKET, key)
        local.unlink()

    state, size = setting.state, size_of(setting.state)
    task = Task(lambda: download(original.name), check_file, lambda: download("tiny.tensors"))
    checked = partial(_check_saved, server, state)
    return (
        setting.contender("boto3 download_file", size, lambda: task, size, original),
        setting.saves("a file, then boto3 upload_file", save, checked, state),
    )


def _streams(setting: Setting, server: S3, file: Path, tiny: str) -> Contender:
    name = "Run:ai streamer, load"
    environment = server.environment() | {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
    }
    choices = (
        setting.loads(
            f"{name}, concurrency={n}",
            streamer_load(**environment, RUNAI_STREAMER_CONCURRENCY=str(n)),
            _uri(file.name),
            _uri(tiny),
            setting.state,
            file,
        )
        for n in CONNECTIONS
    )
    return best_of(name, choices, setting.quick)


def s3(setting: Setting) -> Iterator[list[Contender]]:
    with s3_server(setting.directory) as server:
        state, folder = setting.state, _folder(server)
        tiny = setting.write(ops_save(), TINY, folder / "tiny.tensors")
        ours = setting.write(ops_save(), state, folder / "ours.tensors")
        theirs, their_tiny = folder / "theirs.safetensors", folder / "tiny.safetensors"

        setting.write(ops_save("none"), state, theirs)
        setting.write(ops_save("none"), TINY, their_tiny)
        no_streamer = why_not("runai_model_streamer_s3", SAFETENSORS.module)
        load = ops_load(options=server.options())
        save = ops_save(options=server.options())
        no_boto3 = why_not("boto3")
        downloads, uploads = _boto3(setting, server, ours)
        yield [
            setting.bare_loads(CONNECTIONS, _url(server, ours.name), ours, *SIGNED),
            setting.loads("us, load", load, _uri(ours.name), _uri(tiny.name), state, ours),
            setting.loads(
                "us, load safetensors", load, _uri(theirs.name), _uri(tiny.name), state, theirs
            ),
            unless(no_streamer, _streams(setting, server, theirs, their_tiny.name)),
            unless(no_boto3, downloads),
            _bare_saves(setting, server, ours),
            setting.saves(
                "us, save",
                lambda tensors, key: save(tensors, _uri(key)),
                partial(_check_saved, server, state),
                state,
            ),
            unless(no_boto3, uploads),
        ]
