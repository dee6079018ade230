"""Responses of web servers that say something else than their status."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from support.samples import assert_same, random_bytes, zoo
from support.scripted import Asked, scripted
from tensorizer_ops.stream_io import open_stream

ops = torch.ops.tensorizer

REFUSED = "416 Range Not Satisfiable"


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("answers") / "m.tensors"
    ops.save(str(path), zoo())
    return path.read_bytes()


@pytest.mark.parametrize("said", ["", "bytes */5", "bytes */*", "nonsense"])
def test_a_refused_range_does_not_make_a_file_empty(content: bytes, said: str) -> None:
    def answer(asked: Asked) -> None:
        if asked.headers["Range"]:
            asked.say(REFUSED, **({"Content_Range": said} if said else {}))
        else:
            asked.say("200 OK", content)

    with scripted(answer) as server:
        assert_same(ops.load(server.url()), zoo())
        with open_stream(server.url(), "rb") as stream:
            assert stream.read() == content


@pytest.mark.parametrize("size", [10**15, 10**19])
def test_a_size_that_no_memory_holds(size: int) -> None:
    def answer(asked: Asked) -> None:
        said = f"bytes 0-{(1 << 20) - 1}/{size}"
        asked.say("206 Partial Content", bytes(1 << 20), Content_Range=said, ETag='"1"')

    with scripted(answer) as server, open_stream(server.url(), "rb") as stream:
        assert stream.read(100) == bytes(100)
        with pytest.raises(MemoryError, match=f"there is no memory for the {size - 65536} bytes"):
            stream.read()


@pytest.mark.parametrize("encoding", ["aws-chunked", "aws-chunked,", "Binary", "UTF-8", " "])
def test_words_that_are_no_encodings(content: bytes, encoding: str) -> None:
    with scripted(lambda asked: asked.say_range(content, Content_Encoding=encoding)) as server:
        assert_same(ops.load(server.url()), zoo())


@pytest.mark.parametrize("encoding", ["gzip", "aws-chunked, gzip"])
def test_an_encoding_is_refused(content: bytes, encoding: str) -> None:
    with (
        scripted(lambda asked: asked.say_range(content, Content_Encoding=encoding)) as server,
        pytest.raises(ConnectionError, match="sends the file encoded"),
    ):
        ops.load(server.url())


def test_ranges_of_a_size_that_is_not_said(tmp_path: Path) -> None:
    weights = {"x": random_bytes(3 << 20)}
    ops.save(str(tmp_path / "m"), weights)
    content = (tmp_path / "m").read_bytes()
    with_size = 0

    def answer(asked: Asked) -> None:
        nonlocal with_size
        if not asked.headers["range"]:
            return asked.say("200 OK", content)
        begin, last = map(int, asked.headers["range"].removeprefix("bytes=").split("-"))
        body = content[begin : last + 1]
        with_size -= 1
        size = "*" if with_size < 0 else str(len(content))
        said = f"Bytes {begin}-{begin + len(body) - 1}/{size}"
        asked.say("206 Partial Content", body, Content_Range=said, ETag='"1"')

    with scripted(answer) as server:
        for ranges in (0, 1, 2):  # the first ones of the load, which say the size
            with_size = ranges
            assert_same(ops.load(server.url(), options={"chunk_size": "1000000"}), weights)


def test_an_empty_file_is_known_by_its_size() -> None:
    def answer(asked: Asked) -> None:
        asked.say(REFUSED, Content_Range="bytes */0")

    with scripted(answer) as server:
        with open_stream(server.url(), "rb") as stream:
            assert stream.read() == b""
        with pytest.raises(ValueError, match="is empty"):
            ops.load(server.url())


@pytest.mark.parametrize("page", [b"<html>log in</html>", b"\n<!DOCTYPE HTML>\n<title>"])
def test_a_page_is_no_receipt(page: bytes) -> None:
    def answer(asked: Asked) -> None:
        asked.body()
        asked.say("201 Created" if asked.path == "/made" else "200 OK", page)

    with scripted(answer) as server:
        with pytest.raises(ConnectionError, match="status 200 and an HTML page, as proxies"):
            ops.save(server.url(), zoo())
        ops.save(server.url("made"), zoo())  # as Apache does


def test_a_receipt_before_the_file() -> None:
    def answer(asked: Asked) -> None:
        asked.say("201 Created", Connection="close")
        asked.body()  # until the client disconnects: unread bytes would reset the connection

    with (
        scripted(answer) as server,
        pytest.raises(ConnectionError, match="201 before it has received the whole file"),
    ):
        ops.save(server.url(), {"x": random_bytes(64 << 20, 1)})


def test_bandwidth(tmp_path: Path) -> None:
    """The limit holds for all connections together, and is no stall."""
    tensors = {f"t{i}": random_bytes(200_000, i) for i in range(5)}
    ops.save(str(tmp_path / "m"), tensors)
    content = (tmp_path / "m").read_bytes()
    stored = []

    def answer(asked: Asked) -> None:
        if asked.command == "PUT":
            stored.append(asked.body())
            asked.say("201 Created")
        else:
            asked.say_range(content, ETag='"1"')

    options = {"max_bandwidth": "500000", "chunk_size": "65536", "stall_timeout": "1"}
    with scripted(answer) as server:
        begin = time.monotonic()
        assert_same(ops.load(server.url(), options=options), tensors)
        assert time.monotonic() - begin > 1.4
        begin = time.monotonic()
        ops.save(server.url(), tensors, options=options)
        assert stored == [content]
        assert time.monotonic() - begin > 1.4
