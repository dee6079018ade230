"""Fixtures for every test: the ops, a temporary directory that is checked afterwards, and servers
that a module of tests shares, unless it has its own of that name."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops  # noqa: F401  (loads the ops)
from local_servers.redis_server import RedisServer, redis_server
from local_servers.s3_server import S3, s3_server
from local_servers.waiting import LAST_RESORT
from local_servers.web import Web, nginx
from support.packages import Weighted, package
from support.signer import Signer

# Needs vLLM, 3 GB in an environment of its own: `make test-vllm`.
collect_ignore = ["vllm_server"]

# A shell starts background jobs with SIGINT ignored, which new processes would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _open_below(directory: Path) -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of iterdir(), closed by now
            found.append(str(link.readlink()))
    return [target for target in found if target.startswith(f"{directory}/")]


_breakdowns: list[str] = []


def pytest_internalerror(excrepr: object) -> None:
    _breakdowns.append(str(excrepr))


TEMPORARY = pytest.StashKey[str]()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(config.stash[TEMPORARY], ignore_errors=True)
    # The summary is at the end of the log, far below the first internal error of pytest.
    if _breakdowns and not hasattr(config, "workerinput"):
        print(f"pytest itself broke first of this:\n{_breakdowns[0][-900:]}")


def pytest_configure(config: pytest.Config) -> None:
    # With these set, pytest prints the full diff of two files that differ, which takes an hour.
    for name in ("CI", "BUILD_NUMBER"):
        os.environ.pop(name, None)
    # Whatever tests, torch and other processes leave among the temporary files is removed with this
    # folder, which worker processes share. Paths of sockets in it must not get too long.
    if not hasattr(config, "workerinput"):
        made = config.stash[TEMPORARY] = tempfile.mkdtemp()
        os.environ["TMPDIR"] = tempfile.tempdir = made
        config.option.basetemp = config.option.basetemp or f"{made}/tests"
    # Two processes that compile the same package into one cache overwrite each other's files.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{tempfile.gettempdir()}/inductor-{os.getpid()}"
    # Finding out which instructions the compiler knows takes longer than compiling for the tests.
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"
    config.addinivalue_line("filterwarnings", "ignore:.*torch.jit:DeprecationWarning")
    config.addinivalue_line("filterwarnings", "ignore:ComplexHalf")
    config.addinivalue_line("markers", "slow: takes so long that only all-checks runs it")
    config.addinivalue_line("markers", "keeps_files_open: what others hold, stays open")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "model.tensors")


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer(tmp_path / "keys")


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    """A directory in memory (tmpfs) for this test alone."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis(running_redis: RedisServer) -> RedisServer:
    """A Redis server with no keys."""
    running_redis.clear()
    return running_redis


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with nginx(tmp_path_factory.mktemp("web")) as server:
        (server.root / "put").mkdir()
        yield server


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def without_weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Weighted]:
    """An AOTInductor package without weights, and its module."""
    torch.manual_seed(5)
    module = Weighted()
    path = tmp_path_factory.mktemp("package") / "model.pt2"
    without = {"aot_inductor.package_constants_in_so": False}
    return package(module, torch.ones(1, 4096), path, **without), module


HAS_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[HAS_FAILED] = True
    return report


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Deletes the test's directory. Fails if one of its files is still open in this process."""
    yield
    left = []
    has_failed = request.node.stash.get(HAS_FAILED, False)  # whose traceback keeps files open
    if not has_failed and not request.node.get_closest_marker("keeps_files_open"):
        # A library thread that is just ending may still hold the last reference to a file.
        patience = time.monotonic() + LAST_RESORT
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
    if torch.distributed.is_initialized():  # as DTensors need
        torch.distributed.destroy_process_group()
