"""Streams over files, web servers and Redis, beside those of PyPI's tensorizer."""

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
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorizer.stream_io as classic
import torch

import tensorizer_ops
from local_servers.redis_server import RedisServer
from local_servers.web import PASSWORD, Web, nginx
from support.process import feed, fork, run_python, ticking, wait
from support.scripted import Asked, scripted
from tensorizer_ops import stream_io
from tensorizer_ops.stream_io import CAInfo, CURLStreamFile, RedisStreamFile, open_stream

BYTES = random.Random(1).randbytes(24 << 20)
SMALL = BYTES[:100_000]


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with nginx(tmp_path_factory.mktemp("web")) as server:
        (server.root / "large").write_bytes(BYTES)
        (server.root / "small").write_bytes(SMALL)
        (server.root / "empty").write_bytes(b"")
        (server.root / "lines").write_bytes(b"one\ntwo\n\nfour")
        yield server


@pytest.fixture
def large(redis: RedisServer, web: Web, request: pytest.FixtureRequest) -> Iterator[str]:
    """The same bytes, each place in its turn."""
    if request.param == "redis":
        with redis.client() as client:
            client.set("p:header:0", BYTES[:1000])
            client.set("p:data:1000", BYTES[1000 : 10 << 20])
            client.set(f"p:more:{10 << 20}", BYTES[10 << 20 :])
        yield redis.url("p")
    else:
        yield web.url(f"{request.param}large")


PLACES = pytest.mark.parametrize("large", ["", "no-ranges/", "redis"], indirect=True)


# Files of this machine.


@pytest.mark.parametrize("mode", ["rb", "r+b", "wb", "wb+", "w+b", "ab", "ab+", "xb", "bx+"])
def test_files_as_there(tmp_path: Path, mode: str) -> None:
    seen = []
    for module in (classic, stream_io):
        path = tmp_path / module.__name__ / "folder" / "file"
        if "r" in mode or "a" in mode:
            path.parent.mkdir(parents=True)
            path.write_bytes(b"0123456789")
        with module.open_stream(str(path), mode, begin=3) as stream:
            steps = [stream.tell(), stream.readable(), stream.writable(), type(stream)]
            if stream.readable():
                steps.append(stream.read(2))
            if stream.writable():
                steps += [stream.write(b"abc"), stream.tell()]
        seen.append([*steps, path.read_bytes()])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("mode", ["rb", "rb+"])
def test_a_read_makes_no_folders(tmp_path: Path, mode: str) -> None:
    with pytest.raises(FileNotFoundError):
        open_stream(tmp_path / "folder" / "file", mode)
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("mode", ["r", "w", "wt", "r+", "rwb", "b", ""])
def test_modes_that_are_none(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"kept")
    for module in (classic, stream_io):
        with pytest.raises(ValueError, match="mode"):
            module.open_stream(str(path), mode)
    assert path.read_bytes() == b"kept"


def test_unbuffered_files(tmp_path: Path) -> None:
    with open_stream(str(tmp_path / "file"), "wb", buffer_size=0) as stream:
        assert isinstance(stream, io.FileIO)


def test_paths_are_never_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_stream(Path("http://nowhere/x"), "wb") as stream:
        stream.write(b"here")
    assert (tmp_path / "http:" / "nowhere" / "x").read_bytes() == b"here"
    name = os.fsencode(tmp_path) + b"/\xff"
    with open_stream(name, "wb") as stream:
        stream.write(b"there")
    assert Path(os.fsdecode(name)).read_bytes() == b"there"


def test_a_pipe(tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    with feed(fifo, SMALL), open_stream(fifo) as stream:
        assert stream.read() == SMALL


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_stream(str(tmp_path / "nothing"))
    with pytest.raises(IsADirectoryError):
        open_stream(str(tmp_path))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises((OSError, ValueError)):
        open_stream(str(tmp_path / "file"), begin=-1)


# Reading from servers.


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
    """The same as a file does, whatever is done to it."""
    rng = random.Random(5)
    file = io.BytesIO(BYTES)
    back = "no-ranges" not in large  # there each step back starts at the beginning
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


def sizes_of(web: Web, total: int) -> list[int]:
    """What each request brought, of so much or more; the server may be a little late to say so."""
    sizes: list[int] = []
    deadline = time.monotonic() + 10
    while sum(sizes) < total and time.monotonic() < deadline:
        sizes += [int(line.split('" ')[1].split()[1]) for line in web.requests()]
        time.sleep(0.01)
    return sizes


def test_small_reads_make_few_requests(web: Web) -> None:
    web.requests()
    with open_stream(web.url("large")) as stream:
        while stream.read(5000):
            pass
    sizes = sizes_of(web, len(BYTES))
    assert len(sizes) <= 30 and sum(sizes) == len(BYTES)
    # A seek far away asks for little.
    with open_stream(web.url("large")) as stream:
        stream.seek(20 << 20)
        assert stream.read(100) == BYTES[20 << 20 :][:100]
    first, *rest = sizes_of(web, (1 << 20) + 100)
    assert first == 1 << 20 and sum(rest) <= 64 << 10


def test_a_small_end_asks_for_nothing_behind_it(web: Web) -> None:
    web.requests()
    with open_stream(web.url("large"), begin=2 << 20, end=(2 << 20) + 500) as stream:
        assert stream.read() == BYTES[2 << 20 :][:500]
    assert sizes_of(web, 500) == [500]


def test_memory_is_bounded(web: Web) -> None:
    code = """
import resource, sys
from tensorizer_ops.stream_io import open_stream
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
with open_stream(sys.argv[1]) as stream:
    stream.read(100)
    before = peak()
    while stream.read(100_000):
        pass
assert peak() - before < 40 << 20, peak() - before
"""
    with (web.root / "huge").open("wb") as file:
        file.truncate(300 << 20)
    run_python(code, web.url("huge"))


def test_certificates(web: Web) -> None:
    url = web.tls_url("small")
    for handling in (CAInfo(cacert=web.ca), CAInfo(allow_untrusted=True)):
        with open_stream(url, certificate_handling=handling) as stream:
            assert stream.read() == SMALL
    with pytest.raises(ConnectionError):
        open_stream(url)
    folder = web.folder / "authorities"
    folder.mkdir()
    name = os.popen(f"openssl x509 -hash -noout -in {web.ca}").read().strip()
    (folder / f"{name}.0").write_text(Path(web.ca).read_text())
    with open_stream(url, certificate_handling=CAInfo(capath=str(folder))) as stream:
        assert stream.read() == SMALL
    with pytest.raises(TypeError, match="CAInfo"):
        open_stream(url, certificate_handling="no")


def test_what_certificates_may_be(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("")
    for given in (
        {},
        {"cacert": str(file), "allow_untrusted": True},
        {"cacert": str(tmp_path)},
        {"capath": str(file)},
    ):
        for module in (classic, stream_io):
            with pytest.raises(ValueError):
                module.CAInfo(**given)
    for given in ({"cacert": str(file)}, {"capath": str(tmp_path)}, {"allow_untrusted": True}):
        assert CAInfo(**given).curl_flags == classic.CAInfo(**given).curl_flags
        assert hash(CAInfo(**given)) == hash(CAInfo(**given))


def test_headers_and_logins(web: Web) -> None:
    headers = {"Authorization": "Bearer a-token"}
    with CURLStreamFile(web.url("token/small"), headers=headers) as stream:
        assert stream.read() == SMALL
        assert "a-token" not in repr(stream) + repr(stream._engine_place())
    login = web.url("private/small").replace("://", f"://me:{PASSWORD.replace(' ', '%20')}@")
    with open_stream(login) as stream:
        assert stream.read() == SMALL
        assert "open" not in repr(stream) + stream.name
    with pytest.raises(PermissionError) as caught:
        open_stream(login.replace("sesame", "bread"))
    assert "bread" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("nothing", FileNotFoundError),
        ("forbidden/x", PermissionError),
        ("private/small", PermissionError),
    ],
)
def test_refusals_are_os_errors(web: Web, path: str, kind: type[OSError]) -> None:
    with pytest.raises(OSError):
        classic.open_stream(web.url(path))
    with pytest.raises(kind):
        open_stream(web.url(path))


def test_hosts_and_uris_that_are_none(web: Web) -> None:
    with pytest.raises(ConnectionError):
        open_stream("http://127.0.0.1:1/x")
    with pytest.raises(ValueError, match="no http"):
        CURLStreamFile("file:///etc/passwd")
    with pytest.raises(ValueError, match="no redis"):
        RedisStreamFile(web.url("small"))


def test_errors_in_the_middle_say_more(web: Web) -> None:
    (web.root / "changing").write_bytes(BYTES)
    with open_stream(web.url("changing")) as stream:
        stream.read(100)
        stream.register_error_context("it was a strange day")
        (web.root / "changing").write_bytes(b"shorter")
        stream.seek(9 << 20)
        with pytest.raises(OSError, match=r"has changed(.|\n)*it was a strange day"):
            stream.read(100)


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


def test_redis_as_there(redis: RedisServer) -> None:
    with redis.client() as client:
        client.set("p:header:0", SMALL[:1000])
        client.set("p:b:1000", SMALL[1000:])
    with classic.open_stream(redis.url("p")) as theirs, open_stream(redis.url("p")) as ours:
        assert isinstance(ours, RedisStreamFile)
        assert ours.read(10) == theirs.read(10)
        assert ours.tell() == theirs.tell() == 10
        assert ours.bytes_read == theirs.bytes_read == 10
        assert ours.read() == theirs.read() == SMALL[10:]
        assert ours.setup_latency > 0
    with pytest.raises(FileNotFoundError):
        open_stream(redis.url("nothing"))
    with pytest.raises(ConnectionError):
        open_stream("redis://127.0.0.1:1/p")


def test_redis_keys_of_any_names(redis: RedisServer) -> None:
    """In the order of their offsets, also where none is the header of a file."""
    pieces = {"t:hello:0": b"Hello" * 300_000, "t:world:1500000": b"World", "t:excl:1500005": b"!!"}
    with redis.client() as client:
        client.mset(pieces)
    whole = b"".join(pieces.values())
    with classic.open_stream(redis.url("t")) as theirs, open_stream(redis.url("t")) as ours:
        for begin, size in ((0, 1024), (0, 1_500_000), (1_499_984, 22), (0, len(whole))):
            for stream in (ours, theirs):
                stream.seek(begin)
                assert stream.read(size) == whole[begin : begin + size], stream
        ours.seek(0)
        assert ours.read() == whole


def test_redis_keys_with_gaps(redis: RedisServer) -> None:
    """What is there can be read; a read of what is not there is an error, and brings no zeros."""
    with redis.client() as client:
        client.mset({"p:header:0": b"a" * 1000, "p:b:5000": b"b" * 3_000_000, "p:c:9000000": b"c"})
    with classic.open_stream(redis.url("p")) as theirs, open_stream(redis.url("p")) as ours:
        for begin, size in ((0, 1000), (5000, 3_000_000), (9_000_000, 1), (990, 10)):
            for stream in (ours, theirs):
                stream.seek(begin)
                found = bytearray(size)
                assert stream.readinto(found) == size and len(set(found)) == 1, stream
        ours.seek(9_000_001)
        assert ours.read(5) == b""
        for begin, size in ((0, 1001), (1000, 1), (4999, 2), (9_000_000 - 1, 1), (5000, -1)):
            ours.seek(begin)
            with pytest.raises(OSError, match=r"has no byte .* keys between are missing"):
                ours.read(size)
        assert ours.seek(-1, 2) == 9_000_000 and ours.read() == b"c"
    with open_stream(redis.url("p"), end=1000) as ours:
        assert ours.read() == b"a" * 1000
    with redis.client() as client:
        client.set("p:stale:5001", b"x")
    with pytest.raises(ValueError, match="p:stale:5001"):
        open_stream(redis.url("p"))


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


@pytest.fixture
def sigint() -> Iterator[None]:
    """A shell lets what it runs in the background ignore it, and so would this interpreter."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint")
def test_ctrl_c() -> None:
    sent: int | None = None

    def stalls(asked: Asked) -> None:
        nonlocal sent
        asked.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + bytes(100_000))
        sent = ticks()
        os.kill(os.getpid(), signal.SIGINT)
        asked.rfile.read(1)  # until the other side hangs up

    with ticking() as ticks, scripted(stalls) as server:
        with pytest.raises(KeyboardInterrupt), open_stream(server.url()) as stream:
            stream.read()
        assert sent is not None
        assert ticks() - sent <= 10


# On the way to the engine.


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
