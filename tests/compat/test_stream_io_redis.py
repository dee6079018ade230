"""Streams from Redis, compared with PyPI's tensorizer: keys of any names, and gaps."""

from __future__ import annotations

import pytest
import tensorizer.stream_io as classic

from local_servers.redis_server import RedisServer
from support.streams import SMALL
from tensorizer_ops.stream_io import RedisStreamFile, open_stream


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
    """Keys are read in the order of their offsets, even if none of them is a file header."""
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
    """Existing bytes can be read. A read of missing bytes is an error, and never returns zeros."""
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
