"""Faulty web servers: a load returns the right bytes or raises a clear error."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tensorizer_ops
from support.faults import FAULTS, HARMLESS, Fault, FaultyServer, Request, faulty_server, right
from support.samples import assert_same, sample

ops = torch.ops.tensorizer

TENSORS = {f"t{i}": sample(torch.int32, (90_000 + i,), i) for i in range(12)}  # 4 MB
OPTIONS = {
    "stall_timeout": "0.2",
    "retries": "8",
    "chunk_size": str(256 << 10),
    "connections": "4",
}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("faults") / "m.tensors"
    ops.save(str(path), TENSORS, hashes="all")
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.fixture(scope="module")
def server(content: bytes) -> Iterator[FaultyServer]:
    with faulty_server(content) as server:
        yield server


def load(server: FaultyServer, verify: str = "all") -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = ops.load(server.url, verify=verify, options=OPTIONS)
    return loaded


@pytest.mark.parametrize("fault", HARMLESS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("first", [0, 1, 7])
def test_faults_that_pass(server: FaultyServer, fault: Fault, first: int) -> None:
    server.meet([*[right] * first, fault, fault, fault], seed=first)
    assert_same(load(server), TENSORS)


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("another_range", ConnectionError, "a different range than was requested"),
        ("another_begin", ConnectionError, "a different range than was requested"),
        ("another_size", ConnectionError, "has changed while it was loaded"),
        ("another_file", ConnectionError, "has changed while it was loaded"),
        ("no_range", ConnectionError, "does not support ranges any more"),
        ("flip", tensorizer_ops.errors.HashMismatch, "t"),
    ],
)
def test_faults_that_do_not(
    server: FaultyServer, name: str, kind: type[Exception], text: str
) -> None:
    (fault,) = [fault for fault in FAULTS if fault.__name__ == name]
    server.meet([right, fault], seed=1)
    with pytest.raises(kind, match=text):
        load(server)


def patient(request: Request, dice: random.Random) -> Iterator[bytes]:
    yield request.head("503 Busy", Content_Range="", Content_Length="0", Retry_After="1")


def test_a_server_that_says_when_is_asked_then(server: FaultyServer) -> None:
    server.meet([right, patient], seed=1)
    start = time.monotonic()
    assert_same(load(server), TENSORS)
    assert time.monotonic() - start >= 1


def hang_up(request: Request, dice: random.Random) -> Iterator[bytes]:
    """Ends the connection early, in a response without a length."""
    yield request.head(Content_Length="") + request.body[:1000]
    yield b""


def test_an_end_that_comes_too_soon_is_no_end(server: FaultyServer) -> None:
    server.meet([right, hang_up, hang_up, hang_up], seed=1)
    assert_same(load(server), TENSORS)


def short(request: Request, dice: random.Random) -> Iterator[bytes]:
    yield request.head() + request.body[: 100 << 10]
    yield b""


def test_what_brings_something_is_no_failure(server: FaultyServer) -> None:
    options = OPTIONS | {"retries": "1", "chunk_size": str(8 << 20), "connections": "1"}
    server.meet([right, *[short] * 12], seed=1)
    assert_same(ops.load(server.url, verify="all", options=options), TENSORS)


def test_what_begins_anew_brings_nothing(server: FaultyServer) -> None:
    server.meet([short] * 8, seed=1)
    with pytest.raises(ConnectionError, match="after 3 more tries"):
        ops.load(server.url, options=OPTIONS | {"retries": "3"})


def ends_right(content: bytes, seed: int) -> bool:
    """Whether a load returns the right bytes despite the faults of a script. It may also raise."""
    dice = random.Random(seed)
    pool = HARMLESS if seed % 2 else FAULTS
    script = [dice.choice(pool) for _ in range(dice.randrange(1, 9))]
    # Retries of the first request start at its first byte, each after a longer back-off, so a right
    # response comes early.
    script.insert(dice.randrange(3), right)
    with faulty_server(content) as server:
        server.meet(script, seed)
        try:
            assert_same(load(server), TENSORS)
            return True
        except tensorizer_ops.errors.Error:
            return False


@pytest.mark.parametrize("block", range(10))
def test_any_faults(content: bytes, block: int) -> None:
    """300 seeded scripts in ten blocks. They run in threads, because they mostly wait."""
    with ThreadPoolExecutor(6) as pool:
        seeds = range(block * 30, block * 30 + 30)
        right_ends = sum(pool.map(lambda seed: ends_right(content, seed), seeds))
    assert 15 <= right_ends < len(seeds)
