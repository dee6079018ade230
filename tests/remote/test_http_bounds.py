"""Endless responses of web servers: every request ends, after a limit of bytes or of time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch

from support.samples import assert_same, random_bytes, zoo
from support.scripted import Asked, scripted

ops = torch.ops.tensorizer

# Endless bodies: as fast as possible, or slow, so that only a time limit applies, but no stall.
FAST = (b"x" * 65536, 0.0)
SLOW = (b"x" * 64, 0.02)
PACES = pytest.mark.parametrize("pace", [FAST, SLOW], ids=["fast", "slow"])
NO_LENGTH = {"Content_Length": "", "Connection": "close"}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("bounds") / "m.tensors"
    ops.save(str(path), zoo())
    return path.read_bytes()


@PACES
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("404 Not Found", FileNotFoundError),
        ("403 Forbidden", PermissionError),
        ("503 Busy", ConnectionError),
        ("416 Range Not Satisfiable", ConnectionError),
    ],
)
def test_refusals_of_a_load(status: str, kind: type[Exception], pace: tuple[bytes, float]) -> None:
    def answer(asked: Asked) -> None:
        asked.say(status, **NO_LENGTH)
        asked.never_end(*pace)

    with scripted(answer) as server:
        with pytest.raises(kind):
            ops.load(server.url(), options={"retries": "0", "stall_timeout": "0.5"})
        assert not server.drained


def test_a_refusal_whose_body_does_not_come() -> None:
    def answer(asked: Asked) -> None:
        asked.say("404 Not Found", Content_Length="1000")
        asked.rfile.read(1)  # until the client disconnects

    with scripted(answer) as server, pytest.raises(FileNotFoundError):
        ops.load(server.url(), options={"stall_timeout": "0.3", "retries": "0"})


@PACES
def test_redirects(content: bytes, pace: tuple[bytes, float]) -> None:
    def answer(asked: Asked) -> None:
        if asked.path == "/there":
            asked.say_range(content, ETag='"1"')
        else:
            asked.say("302 Found", Location="/there", **NO_LENGTH)
            asked.never_end(*pace)

    with scripted(answer) as server:
        assert_same(ops.load(server.url(), options={"stall_timeout": "0.5"}), zoo())
        assert not server.drained


def test_a_chain_of_redirects_has_the_time_of_one(content: bytes) -> None:
    def answer(asked: Asked) -> None:
        step = int(asked.path.rpartition("/")[2])
        if step == 8:
            asked.say_range(content, ETag='"1"')
        else:
            asked.say("302 Found", Location=f"/{step + 1}", **NO_LENGTH)
            asked.never_end(*SLOW)

    with scripted(answer) as server:
        begin = time.monotonic()
        assert_same(ops.load(server.url("0"), options={"stall_timeout": "0.5"}), zoo())
        assert time.monotonic() - begin < 3  # eight bodies of 0.5 s each would take 4


@PACES
def test_answers_to_a_put(pace: tuple[bytes, float]) -> None:
    def answer(asked: Asked) -> None:
        asked.body()
        asked.say("201 Created" if "good" in asked.path else "403 Forbidden", **NO_LENGTH)
        asked.never_end(*pace)

    options = {"stall_timeout": "0.5"}
    with scripted(answer) as server:
        with pytest.raises(PermissionError):
            ops.save(server.url("bad"), zoo(), options=options)
        if pace is FAST:
            ops.save(server.url("good"), zoo(), options=options)
        assert not server.drained


S3 = {
    "s3_access_key_id": "key",
    "s3_secret_access_key": "secret",
    "s3_region": "here",
    "force_http": "true",
    "stall_timeout": "0.5",
    "retries": "0",
}


@pytest.mark.parametrize("size", [1 << 20, 20 << 20], ids=["object", "part"])
@pytest.mark.parametrize(
    ("status", "kind"), [("200 OK", ConnectionError), ("403 Forbidden", PermissionError)]
)
def test_answers_of_s3(size: int, status: str, kind: type[Exception]) -> None:
    def answer(asked: Asked) -> None:
        asked.body()
        if asked.path.endswith("uploads="):
            root = b"InitiateMultipartUploadResult"
            asked.say("200 OK", b"<%s><UploadId>u</UploadId></%s>" % (root, root))
        elif asked.command == "DELETE":
            asked.say("204 No Content")
        else:
            asked.say(status, ETag='"1"', **NO_LENGTH)
            asked.never_end(*FAST)

    tensors = {"x": random_bytes(size, 1)}
    with scripted(answer) as server:
        with pytest.raises(kind):
            ops.save("s3://bucket/x", tensors, options={**S3, "s3_endpoint": server.url("")})
        assert not server.drained


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 206 Partial Content\r\n", b"X-Header: " + b"y" * 4000 + b"\r\n"),
        (b"", b"HTTP/1.1 102 Processing\r\nX-Header: " + b"y" * 4000 + b"\r\n\r\n"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            b"X: " + b"y" * 4000 + b"\r\n",
        ),
    ],
    ids=["headers", "interim", "trailers"],
)
def test_heads(head: bytes, piece: bytes) -> None:
    def answer(asked: Asked) -> None:
        asked.wfile.write(head)
        asked.never_end(piece)

    with scripted(answer) as server:
        with pytest.raises(ConnectionError, match="headers have more than 262144 bytes"):
            ops.load(server.url())
        assert not server.drained and len(server.asked) == 1


@pytest.mark.parametrize("interim", [False, True])
def test_slow_heads(interim: bool) -> None:
    line = b"HTTP/1.1 100 Continue\r\n\r\n" if interim else b"X-Header: " + b"y" * 200 + b"\r\n"

    def answer(asked: Asked) -> None:
        if not interim:
            asked.wfile.write(b"HTTP/1.1 200 OK\r\n")
        asked.never_end(line, 0.005)

    with scripted(answer) as server:
        with pytest.raises(TimeoutError, match="headers are not complete after 0 s"):
            ops.load(server.url(), options={"stall_timeout": "0.5", "retries": "0"})
        assert not server.drained


def test_a_long_line_of_a_head() -> None:
    def answer(asked: Asked) -> None:
        asked.wfile.write(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000 + b"\r\n\r\n")

    with (
        scripted(answer) as server,
        pytest.raises(ConnectionError, match="a line of its headers is too long"),
    ):
        ops.load(server.url())


def test_what_stands_behind_a_body_is_no_head(tmp_path: Path) -> None:
    tensors = {f"t{i}": random_bytes(1 << 20, i) for i in range(3)}
    ops.save(str(tmp_path / "m"), tensors)
    content = (tmp_path / "m").read_bytes()

    def answer(asked: Asked) -> None:
        if len(server.asked) > 1:
            asked.say_range(content, ETag='"1"')
            return
        said = f"bytes 0-{(1 << 20) - 1}/{len(content)}"
        chunked = {"Content_Length": "", "Transfer_Encoding": "chunked"}
        asked.say("206 Partial Content", Content_Range=said, ETag='"1"', **chunked)
        asked.wfile.write(b"100000\r\n" + content[: 1 << 20] + b"\r\n0\r\n")
        asked.wfile.write(b'ETag: "2"\r\nContent-Range: bytes 0-1/2\r\n\r\n')

    with scripted(answer) as server:
        assert_same(ops.load(server.url(), verify="all"), tensors)


def test_the_timeout_of_a_put() -> None:
    """It applies even while the server keeps sending interim responses."""

    def answer(asked: Asked) -> None:
        asked.body()
        asked.never_end(b"HTTP/1.1 102 Processing\r\n\r\n", 0.01)

    with scripted(answer) as server:
        with pytest.raises(TimeoutError, match="takes longer than its time limit"):
            ops.save(server.url(), zoo(), options={"timeout": "0.5"})
        assert not server.drained


def test_the_timeout_of_a_put_that_is_under_way() -> None:
    """The server reads the body slowly."""

    def answer(asked: Asked) -> None:
        asked.send_response_only(100)
        asked.end_headers()
        for _ in range(2000):
            if not asked.rfile.read1(65536):
                return
            stop.wait(0.01)
        asked.server.drained = True

    stop = threading.Event()
    with scripted(answer) as server:
        tensors = {f"t{i}": random_bytes(32 << 20, i) for i in range(8)}
        with pytest.raises(TimeoutError, match="takes longer than its time limit"):
            ops.save(server.url(), tensors, options={"timeout": "0.5"})
        stop.set()
        assert not server.drained


def test_the_timeout_of_a_server_without_ranges(tmp_path: Path) -> None:
    ops.save(str(tmp_path / "m"), {"x": random_bytes(8 << 20, 1)})
    content = (tmp_path / "m").read_bytes()

    def answer(asked: Asked) -> None:
        asked.say("200 OK", Content_Length=str(len(content)))
        asked.wfile.write(content[: 2 << 20])
        asked.never_end(b"x" * 1000, 0.05)

    with scripted(answer) as server:
        with pytest.raises(TimeoutError, match="takes longer than its time limit"):
            ops.load(server.url(), options={"timeout": "0.5"})
        assert not server.drained
