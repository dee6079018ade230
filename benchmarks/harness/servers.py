"""Starts the servers to load from and save to, which the tests use as well."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.memory import Failure
from local_servers import s3_server as rclone
from local_servers import web

if TYPE_CHECKING:
    from local_servers.redis_server import RedisServer

BUCKET = "bucket"


def _need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
            raise Failure(f"{program} is not installed")


@contextmanager
def web_server(folder: Path, bytes_per_second: int | None = None) -> Iterator[web.Web]:
    """Serve the files in `folder`/files, with one worker process for each CPU."""
    _need("nginx", "openssl")
    folder.mkdir()
    workers = len(os.sched_getaffinity(0))
    with web.nginx(folder, workers=workers, bytes_per_second=bytes_per_second) as server:
        yield server


@contextmanager
def s3_server(folder: Path) -> Iterator[rclone.S3]:
    _need(rclone.rclone())
    folder.mkdir()
    with rclone.s3_server(folder) as server:
        yield server


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    _need("redis-server")
    try:
        from local_servers import redis_server
    except ImportError as error:  # the Python client is not installed
        raise Failure(f"{type(error).__name__}: {error}") from None
    folder.mkdir()
    with redis_server.redis_server(folder) as server:
        yield server
