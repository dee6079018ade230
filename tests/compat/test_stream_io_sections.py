"""Streams of a part of a file, as the ``file_obj`` of a TensorDeserializer, and their headers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from local_servers.web import Web, nginx
from support.samples import assert_same, random_bytes
from tensorizer_ops import TensorDeserializer, TensorSerializer, stream_io

WEIGHTS = {f"t{i}": random_bytes(900_000 + i) for i in range(5)}
BEFORE = 500


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """Serves a file that begins behind other bytes, and ends before others."""
    with nginx(tmp_path_factory.mktemp("web")) as server:
        with (server.root / "m").open("wb") as file:
            file.write(b"x" * BEFORE)
            with TensorSerializer(file) as writer:
                writer.write_state_dict(WEIGHTS)
        with (server.root / "m").open("ab") as file:
            file.write(b"y" * 500)
        yield server


def begin(web: Web) -> Any:
    return stream_io.open_stream(web.url("m"), begin=BEFORE)


def begin_and_end(web: Web) -> Any:
    end = (web.root / "m").stat().st_size - 500
    return stream_io.open_stream(web.url("m"), begin=BEFORE, end=end)


def read_before(web: Web) -> Any:
    stream = stream_io.open_stream(web.url("m"))
    assert stream.read(BEFORE) == b"x" * BEFORE
    return stream


@pytest.mark.parametrize("how", [begin, begin_and_end, read_before])
@pytest.mark.parametrize("lazy", [True, False])
def test_many_readers(web: Web, how: Any, lazy: bool) -> None:
    for readers in (1, 3, None):
        stream = how(web)
        with TensorDeserializer(stream, "cpu", num_readers=readers, lazy_load=lazy) as ours:
            assert_same(dict(ours), WEIGHTS)


def test_a_section_that_ends_too_early(web: Web) -> None:
    stream = stream_io.open_stream(web.url("m"), begin=BEFORE, end=1_000_000)
    with pytest.raises((ValueError, OSError), match="end"):
        TensorDeserializer(stream, "cpu", num_readers=3)


def test_a_server_without_ranges_has_one_reader(web: Web) -> None:
    def opened() -> Any:
        return stream_io.open_stream(web.url("no-ranges/m"), begin=BEFORE)

    with pytest.raises(ValueError, match="only one thread reads it"):
        TensorDeserializer(opened(), "cpu", num_readers=3)
    assert_same(dict(TensorDeserializer(opened(), "cpu")), WEIGHTS)


@pytest.mark.parametrize("path", ["m", "moved/m", "no-ranges/m"])
def test_headers_describe_the_file(web: Web, path: str) -> None:
    size = (web.root / "m").stat().st_size
    assert size > 1 << 20, "more than the first request asks for"
    for section in ({}, {"begin": 7}, {"begin": 7, "end": 60_000}):
        with stream_io.open_stream(web.url(path), **section) as stream:
            assert stream.response_headers["Content-Length"] == str(size)
            assert stream.response_headers["Content-Range"] is None
            assert stream.response_headers["Location"] is None
            assert stream.response_headers["ETag"]
