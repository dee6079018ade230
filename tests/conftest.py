"""What every test has: the ops, and a place of its own."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops  # noqa: F401  (loads the ops)
from local_servers.redis_server import RedisServer, redis_server


def _open_below(directory: Path) -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists the others
            found.append(str(link.readlink()))
    return [target for target in found if target.startswith(f"{directory}/")]


_breakdowns: list[str] = []


def pytest_internalerror(excrepr: object) -> None:
    _breakdowns.append(str(excrepr))


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(os.environ.pop("TORCHINDUCTOR_CACHE_DIR"))
    # The end of a log is what everyone sees, and what broke pytest first is far above it.
    if _breakdowns and not hasattr(config, "workerinput"):
        print(f"pytest itself broke first of this:\n{_breakdowns[0][-900:]}")


def pytest_configure(config: pytest.Config) -> None:
    # Where these are set, pytest prints every byte of two files that differ, and takes an hour.
    for name in ("CI", "BUILD_NUMBER"):
        os.environ.pop(name, None)
    # Two processes that compile the same package into one cache spoil each other's files.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor-")
    config.addinivalue_line("filterwarnings", "ignore:.*torch.jit:DeprecationWarning")
    config.addinivalue_line("filterwarnings", "ignore:ComplexHalf")
    config.addinivalue_line("markers", "keeps_files_open: what others hold, stays open")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "model.tensors")


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    """A directory in memory (tmpfs), of this test alone."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis(running_redis: RedisServer) -> RedisServer:
    """A Redis server without any keys."""
    running_redis.clear()
    return running_redis


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """No test ends with a file of its directory still open in this process, or still there."""
    yield
    left = []
    if not request.node.get_closest_marker("keeps_files_open"):
        # A thread of tensorizer's that just ends may be the last one that holds its file.
        patience = time.monotonic() + 60
        while (left := _open_below(tmp_path)) and time.monotonic() < patience:
            gc.collect()
            time.sleep(0.01)
    shutil.rmtree(tmp_path, ignore_errors=True)
    assert not left


@pytest.fixture(autouse=True)
def torch_defaults() -> Iterator[None]:
    yield
    assert torch.get_default_dtype() == torch.float32
    torch.set_default_device(None)
