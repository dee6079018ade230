"""Loads from and saves to an S3 server; every request is signed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.harness.contenders import (
    TINY,
    Contender,
    Setting,
    best_of,
    same_file,
)
from benchmarks.harness.libraries import (
    ops_load,
    ops_save,
    streamer_load,
)
from benchmarks.harness.measure import Task, check
from benchmarks.harness.memory import State
from local_servers.s3_server import KEY_ID, S3, SECRET, s3_server

BUCKET = "bucket"
USER = f"{KEY_ID}:{SECRET}"
CONNECTIONS = (2, 4, 8)


def _uri(key: str) -> str:
    return f"s3://{BUCKET}/{key}"


def _boto3(setting: Setting, server: S3, original: Path) -> list[Contender]:
    """Return a download to a file, which is not loaded, and an upload of a file.

    The upload includes writing the file with tensorizer_ops.
    """
    local = setting.directory / "local"

    @cache
    def client() -> Any:
        import boto3

        with mock.patch.dict(os.environ, server.environment()):
            return boto3.client("s3")

    def download(key: str) -> None:
        client().download_file(BUCKET, key, str(local))

    def check_file(_: State) -> None:
        same_file(local, original)
        local.unlink()

    def save(state: State, key: str) -> None:
        ops_save()(state, str(local))
        client().upload_file(str(local), BUCKET, key)
        local.unlink()

    task = Task(lambda: download(original.name), check_file, lambda: download("tiny.tensors"))
    name = "a file, then boto3 upload_file"
    return [
        setting.performs("boto3 download_file", task, original),
        setting.saves(name, save, partial(_check_saved, setting, original.parent)),
    ]


def _check_saved(setting: Setting, folder: Path, key: str) -> None:
    check(ops_load(copy=True)(str(folder / key)), setting.state)
    (folder / key).unlink()


def _streams(setting: Setting, server: S3, file: Path, tiny: str) -> Contender:
    name = "Run:ai streamer, load"
    environment = server.environment() | {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
    }

    def choice(concurrency: int) -> Contender:
        load = streamer_load(**environment, RUNAI_STREAMER_CONCURRENCY=str(concurrency))
        return setting.loads(
            f"{name}, concurrency={concurrency}", load, _uri(file.name), tiny, file
        )

    return best_of(name, map(choice, CONNECTIONS), setting.quick)


def s3(setting: Setting) -> Iterator[list[Contender]]:
    with s3_server(setting.directory) as server:
        folder = server.root / BUCKET
        setting.write(ops_save(), folder / "tiny.tensors", TINY)
        ours = setting.write(ops_save(), folder / "ours.tensors")
        theirs = setting.write(ops_save("none"), folder / "theirs.safetensors")
        setting.write(ops_save("none"), folder / "tiny.safetensors", TINY)
        load, save = ops_load(options=server.options()), ops_save(options=server.options())
        url, tiny = f"http://127.0.0.1:{server.port}/{BUCKET}/", _uri("tiny.tensors")
        download, upload = _boto3(setting, server, ours)
        yield [
            setting.bare_loads(CONNECTIONS, url + ours.name, ours, user=USER),
            setting.loads("us, load", load, _uri(ours.name), tiny, ours),
            setting.loads("us, load safetensors", load, _uri(theirs.name), tiny, theirs),
            _streams(setting, server, theirs, _uri("tiny.safetensors")),
            download,
            setting.saves(
                "us, save",
                lambda state, key: save(state, _uri(key)),
                partial(_check_saved, setting, folder),
            ),
            upload,
        ]
