"""Starts the servers to load from and save to, which the tests use as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.results import THREADS
from local_servers import s3_server as rclone, web

if TYPE_CHECKING:
    from local_servers.redis_server import RedisServer

BUCKET = "bucket"


@contextmanager
def web_server(folder: Path, bytes_per_second: int | None = None) -> Iterator[web.Web]:
    """Serve the files in `folder`/files, with one worker process for each CPU."""
    folder.mkdir(exist_ok=True)
    with web.nginx(folder, workers=THREADS, bytes_per_second=bytes_per_second) as server:
        yield server


@contextmanager
def s3_server(folder: Path) -> Iterator[rclone.S3]:
    folder.mkdir(exist_ok=True)
    with rclone.s3_server(folder) as server:
        yield server


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    from local_servers import redis_server  # needs a client, which other benchmarks do not

    folder.mkdir(exist_ok=True)
    with redis_server.redis_server(folder) as server:
        yield server
