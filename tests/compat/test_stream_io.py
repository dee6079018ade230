"""Streams from web servers and Redis: all ways to read, with threads, forks and the engine."""

from __future__ import annotations

import gc
import gzip
import io
import json
import os
import pickle
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorizer.stream_io as classic
import torch

import tensorizer_ops
from local_servers.redis_server import RedisServer
from local_servers.web import Web
from support.process import fork, ticking, wait
from support.scripted import Asked, scripted
from support.streams import BYTES, SMALL, stream_server
from tensorizer_ops import stream_io
from tensorizer_ops.stream_io import CURLStreamFile, open_stream


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with stream_server(tmp_path_factory.mktemp("web")) as server:
        yield server


@pytest.fixture
def large(redis: RedisServer, web: Web, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URI of the same bytes, in each place in turn."""
    if request.param == "redis":
        with redis.client() as client:
            client.set("p:header:0", BYTES[:1000])
            client.set("p:data:1000", BYTES[1000 : 10 << 20])
            client.set(f"p:more:{10 << 20}", BYTES[10 << 20 :])
        yield redis.url("p")
    else:
        yield web.url(f"{request.param}large")


PLACES = pytest.mark.parametrize("large", ["", "no-ranges/", "redis"], indirect=True)


@PLACES
def test_reads_all(large: str) -> None:
    with open_stream(large) as stream:
        assert stream.read() == BYTES
        assert stream.read() == b""
        assert stream.tell() == len(BYTES)


@PLACES
@pytest.mark.parametrize("size", [1000, 65536, 1 << 20, 5_000_001])
def test_reads_in_order(large: str, size: int) -> None:
    count = min(len(BYTES), 3000 * size)
    with open_stream(large) as stream:
        read = b"".join(iter(lambda: stream.read(size) if stream.tell() < count else b"", b""))
    assert read == BYTES[: len(read)] and len(read) >= count


@PLACES
def test_reads_anywhere(large: str) -> None:
    """Behaves as a file does, for any sequence of seeks and reads."""
    rng = random.Random(5)
    file = io.BytesIO(BYTES)
    back = "no-ranges" not in large  # without ranges, each step back reads from the start again
    with open_stream(large, buffer_size=3 << 20) as stream:
        for _ in range(60 if back else 12):
            whence = rng.choice([io.SEEK_SET, io.SEEK_CUR, io.SEEK_END])
            offset = {
                io.SEEK_SET: rng.randrange(len(BYTES) + 1000),
                io.SEEK_CUR: rng.randrange(-min(file.tell(), 100_000), 100_000),
                io.SEEK_END: -rng.randrange(len(BYTES)),
            }[whence]
            assert stream.seek(offset, whence) == file.seek(offset, whence)
            size = rng.choice([0, 1, 100, 70_000, 2 << 20, 9 << 20])
            if rng.random() < 0.5:
                assert stream.read(size) == file.read(size)
            else:
                ours, theirs = bytearray(size), bytearray(size)
                assert stream.readinto(ours) == file.readinto(theirs)
                assert ours == theirs
            assert stream.tell() == file.tell()


@PLACES
def test_a_part(large: str) -> None:
    with open_stream(large, begin=5_000_000, end=7_000_000) as stream:
        assert stream.tell() == 5_000_000
        assert stream.read(10) == BYTES[5_000_000:5_000_010]
        assert stream.read() == BYTES[5_000_010:7_000_000]
        assert stream.read(1) == b"" and stream.readinto(bytearray(5)) == 0
        assert stream.seek(0, io.SEEK_END) == 7_000_000
        stream.seek(6_999_999)
        assert stream.read(5) == BYTES[6_999_999:7_000_000]


def test_bounds_that_are_none(web: Web) -> None:
    for module in (classic, stream_io):
        for bounds in ({"begin": -1}, {"begin": 5, "end": 5}, {"end": 0}):
            with pytest.raises(ValueError):
                module.open_stream(web.url("small"), **bounds)


def test_beside_the_classic_stream(web: Web) -> None:
    for bounds in ({}, {"begin": 100}, {"begin": 7, "end": 60_000}):
        with (
            classic.open_stream(web.url("small"), **bounds) as theirs,
            open_stream(web.url("small"), **bounds) as ours,
        ):
            assert isinstance(ours, CURLStreamFile) and isinstance(ours, io.BufferedIOBase)
            for size in (0, 1, 4096, 50_000):
                assert ours.read(size) == theirs.read(size)
                assert ours.tell() == theirs.tell()
                assert ours.bytes_read == theirs.bytes_read
            ours.seek(200)
            theirs.seek(200)
            buffers = bytearray(333), bytearray(333)
            assert ours.readinto(buffers[0]) == theirs.readinto(buffers[1]) == 333
            assert buffers[0] == buffers[1]
            for name in ("ETag", "accept-ranges", "Last-Modified", "x-cache-status"):
                assert ours.response_headers.get(name) == theirs.response_headers.get(name)
            assert ours.response_headers["etag"]
            assert (ours.readable(), ours.writable(), ours.seekable()) == (True, False, True)
            assert ours.http_response_latencies[0] > 0 and ours.read_operations > 0


def test_text_and_lines(web: Web) -> None:
    with open_stream(web.url("lines")) as stream:
        assert stream.readlines() == [b"one\n", b"two\n", b"\n", b"four"]
        stream.seek(0)
        assert list(io.TextIOWrapper(stream)) == ["one\n", "two\n", "\n", "four"]


def test_an_empty_file(web: Web) -> None:
    with open_stream(web.url("empty")) as stream:
        assert stream.read() == stream.read(5) == b""
        assert stream.seek(0, io.SEEK_END) == 0


def test_others_read_from_it(web: Web) -> None:
    value = {"weights": torch.arange(1000), "name": "x" * 5000}
    (web.root / "state.pt").write_bytes(b"")
    torch.save(value, web.root / "state.pt")
    (web.root / "state.pickle").write_bytes(pickle.dumps(list(range(100_000))))
    (web.root / "state.gz").write_bytes(gzip.compress(SMALL))
    (web.root / "state.json").write_text(json.dumps({"a": [1, 2]}))
    with open_stream(web.url("state.pt")) as stream:
        assert torch.equal(torch.load(stream)["weights"], value["weights"])
    with open_stream(web.url("state.pickle")) as stream:
        assert pickle.load(stream) == list(range(100_000))
    with open_stream(web.url("state.gz")) as stream, gzip.open(stream) as unzipped:
        assert unzipped.read() == SMALL
    with open_stream(web.url("state.json")) as stream:
        assert json.load(stream) == {"a": [1, 2]}


@pytest.mark.parametrize("mode", ["wb", "rb+", "ab", "r", "w", "rt"])
def test_servers_that_are_only_read(web: Web, redis: RedisServer, mode: str) -> None:
    for uri in (web.url("small"), redis.url("p")):
        for module in (classic, stream_io):
            with pytest.raises(ValueError, match="mode"):
                module.open_stream(uri, mode)


@PLACES
def test_a_closed_stream(large: str) -> None:
    stream = open_stream(large)
    stream.close()
    stream.close()
    assert stream.closed
    for step in (stream.read, stream.tell, lambda: stream.seek(0), stream.__enter__):
        with pytest.raises(ValueError):
            step()
    assert stream._engine_place() is None


def test_what_it_is_not(web: Web) -> None:
    with open_stream(web.url("small")) as stream:
        for step in (stream.fileno, lambda: stream.write(b"x"), lambda: stream.truncate(0)):
            with pytest.raises(io.UnsupportedOperation):
                step()
        assert not stream.isatty()
        with pytest.raises(TypeError):
            pickle.dumps(stream)
        with pytest.raises(ValueError):
            stream.seek(-1)
        with pytest.raises(ValueError):
            stream.seek(0, 9)
        with pytest.raises(TypeError):
            pickle.dumps(stream._engine_place())


def test_many_threads(web: Web) -> None:
    with open_stream(web.url("large")) as stream:
        pieces: list[bytes] = []

        def read() -> None:
            while piece := stream.read(100_000):
                pieces.append(piece)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(pieces) == sorted(
        BYTES[at : at + 100_000] for at in range(0, len(BYTES), 100_000)
    )


def test_a_child_reads_on(web: Web) -> None:
    with open_stream(web.url("large")) as stream:
        assert stream.read(3 << 20) == BYTES[: 3 << 20]

        def child() -> None:
            assert stream.read() == BYTES[3 << 20 :]

        assert wait(fork(child)) == 0
        assert stream.read() == BYTES[3 << 20 :]


def test_ctrl_c() -> None:
    sent: int | None = None

    def stalls(asked: Asked) -> None:
        nonlocal sent
        asked.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + bytes(100_000))
        sent = ticks()
        os.kill(os.getpid(), signal.SIGINT)
        asked.rfile.read(1)  # until the client disconnects

    with ticking() as ticks, scripted(stalls) as server:
        with pytest.raises(KeyboardInterrupt), open_stream(server.url()) as stream:
            stream.read()
        assert sent is not None
        assert ticks() - sent <= 10


# Handing a file over to the engine.


def test_the_engine_reads_the_same_file(web: Web, redis: RedisServer) -> None:
    tensors = {"x": torch.arange(1000)}
    tensorizer_ops.save(str(web.root / "m.tensors"), tensors)
    tensorizer_ops.save(redis.url("m"), tensors)
    login = web.url("token/m.tensors")
    for stream in (
        open_stream(web.url("m.tensors")),
        CURLStreamFile(login, headers={"Authorization": "Bearer a-token"}),
        open_stream(redis.url("m")),
    ):
        with stream:
            uri, options = stream._engine_place()
            reader = torch.classes.tensorizer.Reader(uri, options)
            assert torch.equal(reader.load()["x"], tensors["x"])
            stream.read(1)
            assert stream._engine_place() is None
            stream.seek(0)
            assert stream._engine_place() is not None
    for bounds in ({"begin": 1}, {"end": 100}):
        with open_stream(web.url("m.tensors"), **bounds) as stream:
            assert stream._engine_place() is None


def test_nothing_stays_open(web: Web) -> None:
    def sockets() -> int:
        found = 0
        for link in Path("/proc/self/fd").iterdir():
            try:
                found += str(link.readlink()).startswith("socket:")
            except FileNotFoundError:
                continue
        return found

    before = sockets()
    for _ in range(5):
        with open_stream(web.url("large")) as stream:
            stream.read(9 << 20)
        open_stream(web.url("small")).read(10)
    gc.collect()
    assert sockets() <= before
