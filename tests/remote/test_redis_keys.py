"""The keys that a file has in Redis: their names, when they appear, and when they are removed."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

import tensorizer_ops
from local_servers.classic_redis import classic_save
from local_servers.redis_server import RedisServer
from support.samples import assert_same, same, sample

ops = torch.ops.tensorizer
Reader, Writer = torch.classes.tensorizer.Reader, torch.classes.tensorizer.Writer

# Each tensor takes several pieces in a load, and its last piece is small.
LARGE = {f"t{i}": sample(torch.float32, (600, 1000 + i), i) for i in range(6)}


def test_nothing_is_left_of_what_is_not_finished(redis: RedisServer) -> None:
    ops.save(redis.url("m"), {"x": torch.ones(3)})
    before = redis.values()

    def written() -> object:
        writer = Writer(redis.url("m"), None)
        writer.add("large", LARGE["t0"], 2, 0)
        writer.add("x", torch.zeros(3), 2, 0)
        assert len(redis.sizes()) == len(before) + 4
        assert redis.values().items() > before.items()
        return writer

    written().abort()
    assert redis.values() == before
    written()
    gc.collect()
    assert redis.values() == before
    writer = written()
    with pytest.raises(ValueError, match="added before"):
        writer.add("x", torch.ones(3), 2, 0)
    del writer
    gc.collect()
    assert redis.values() == before
    with pytest.raises(ValueError):
        ops.save(redis.url("m"), {"x": torch.ones(3), "y": torch.ones(3).to_sparse()})
    with pytest.raises(ValueError, match="same name"):
        # Detected only after everything has been written.
        writer = Writer(redis.url("m"), None)
        writer.add("a", torch.ones(3), 2, 0)
        writer.add('\x1e["a"]', torch.ones(3), 2, 0)
        writer.close()
    assert redis.values() == before


def test_a_smaller_file_leaves_no_key_of_a_larger_one(redis: RedisServer, path: str) -> None:
    with redis.client() as client:
        client.set("m", "other")
        client.set("m:counter", "others")
        client.set("mm:x:5", "others")
    others = set(redis.sizes())
    ops.save(redis.url("m"), LARGE)
    classic_save(redis, path, "m", {"more": torch.ones(5)} | LARGE)
    ops.save(redis.url("m"), {"t1": torch.ones(2)})
    assert_same(ops.load(redis.url("m"), verify="all"), {"t1": torch.ones(2)})
    assert len(redis.sizes().keys() - others) == 3
    assert redis.sizes().keys() > others


def test_readers_see_whole_files_only(redis: RedisServer) -> None:
    """Two threads replace the file continuously, with files of the same and of other shapes."""
    files = [{f"t{i}": torch.full((n, 1000), float(n + i)) for i in range(12)} for n in (40, 70)]
    files.append({name: tensor + 0.5 for name, tensor in files[0].items()})
    ops.save(redis.url("m"), files[0])
    over = threading.Event()
    saved = 0

    def save() -> None:
        nonlocal saved
        while not over.is_set():
            saved += 1
            ops.save(redis.url("m"), files[saved % 3], hashes="none", threads=1)

    def load(**how: object) -> bool:
        try:
            loaded = ops.load(redis.url("m"), **how)
        except ConnectionError as error:
            assert "saved again" in str(error) or "has changed while it was loaded" in str(error)
            return False
        (file,) = (file for file in files if same(loaded["t0"], file["t0"]))
        assert_same(loaded, file)
        return True

    savers = [threading.Thread(target=save) for _ in range(2)]
    for saver in savers:
        saver.start()
    try:
        whole = [load(threads=i % 2, options={"connections": "2"}) for i in range(100)]
    finally:
        over.set()
        for saver in savers:
            saver.join()
    assert saved > 10 and any(whole)
    assert load()
    assert len(redis.sizes()) == 25


def test_a_file_that_is_replaced_is_no_mixture(redis: RedisServer) -> None:
    ops.save(redis.url("m"), LARGE)
    reader = Reader(redis.url("m"), None)
    assert_same(reader.load(None, None, None, "all", False, 0), LARGE)
    ops.save(redis.url("m"), {name: tensor + 1 for name, tensor in LARGE.items()})
    for _ in range(3):
        with pytest.raises(ConnectionError, match="has changed while it was loaded"):
            reader.load(None, None, None, "none", False, 0)
    # This reader has only one connection, which has to detect the change.
    reader = Reader(redis.url("m"), None)
    names = reader.names()
    ops.save(redis.url("m"), LARGE)
    with pytest.raises(ConnectionError, match="has changed while it was loaded"):
        reader.load(names, None, None, "none", False, 1)


def test_overwrite(redis: RedisServer) -> None:
    once = {"overwrite": "false"}
    ops.save(redis.url("m"), {"x": torch.ones(3)}, options=once)
    before = redis.values()
    with pytest.raises(FileExistsError, match="overwrite"):
        ops.save(redis.url("m"), {"x": torch.zeros(3)}, options=once)
    assert redis.values() == before
    writer = Writer(redis.url("n"), once)
    writer.add("x", torch.ones(3), 2, 0)
    ops.save(redis.url("n"), {"x": torch.zeros(3)})
    with pytest.raises(FileExistsError):
        writer.close()
    assert len(redis.sizes()) == 6
    assert ops.load(redis.url("n"))["x"].tolist() == [0, 0, 0]


def test_ttl(redis: RedisServer) -> None:
    ops.save(redis.url("m"), LARGE, options={"ttl": "1000"})
    with redis.client() as client:
        assert all(990 <= client.ttl(key) <= 1000 for key in redis.sizes())
    ops.save(redis.url("m"), LARGE)
    with redis.client() as client:
        assert all(client.ttl(key) == -1 for key in redis.sizes())
    with pytest.raises(ValueError, match="ttl"):
        ops.save(redis.url("m"), LARGE, options={"ttl": "-1"})


PREFIXES = ["a*", "a[bc]", "a\\b", "a\\*", "ab", "axx", "a^", "[^a]", "a b", "é", "a%2A", "a/b//c"]


def test_prefixes_are_no_patterns(redis: RedisServer, path: str) -> None:
    files = {prefix: {f"t{i}": torch.ones(i + 1)} for i, prefix in enumerate(PREFIXES)}
    for prefix, tensors in files.items():
        ops.save(redis.url(prefix), tensors)
    for prefix, tensors in files.items():
        assert_same(ops.load(redis.url(prefix), verify="all"), tensors)
        assert f"{prefix}:header:0" in redis.sizes()
        ops.save(redis.url(prefix), tensors)
    assert len(redis.sizes()) == 3 * len(PREFIXES)
    redis.clear()
    classic_save(redis, path, "a*", files["a*"])
    ops.save(redis.url("ab"), files["ab"])
    assert_same(ops.load(redis.url("a*"), verify="all"), files["a*"])


def test_a_prefix_inside_another_one(redis: RedisServer) -> None:
    outer = {"x": torch.ones(3), "y:header": torch.ones(2), "z": torch.ones(5)}
    inner = {"x": torch.zeros(3), "y:header": torch.zeros(2), "z": torch.zeros(5)}
    ops.save(redis.url("p"), outer)
    ops.save(redis.url("p:x"), inner)
    ops.save(redis.url("p:x:w"), inner)
    for _ in range(2):
        assert_same(ops.load(redis.url("p"), verify="all"), outer)
        assert_same(ops.load(redis.url("p:x"), verify="all"), inner)
        assert_same(ops.load(redis.url("p:x:w"), verify="all"), inner)
        ops.save(redis.url("p"), outer)
        ops.save(redis.url("p:x"), inner)
    assert len(redis.sizes()) == 3 * 7
    before = redis.values()
    with pytest.raises(ValueError, match="longer prefix"):
        ops.save(redis.url("p"), {"x:w": torch.ones(3)})
    ops.save(redis.url("q"), {"x:y": torch.ones(3)})
    with pytest.raises(ValueError, match="may belong to the file whose prefix is 'q'"):
        ops.save(redis.url("q:x"), inner)
    assert ops.load(redis.url("q"))["x:y"].tolist() == [1, 1, 1]
    assert redis.values().items() > before.items()


def test_keys_that_are_missing_or_have_another_size(redis: RedisServer) -> None:
    ops.save(redis.url("m"), LARGE)
    data = [key for key, size in redis.sizes().items() if size > 1 << 20]
    whole = redis.values()
    with redis.client() as client:
        for harm in (
            lambda key: client.delete(key),
            lambda key: client.append(key, "more"),
            lambda key: client.set(key, b"less"),
        ):
            reader = Reader(redis.url("m"), None)
            reader.names()
            harm(data[2])
            with pytest.raises(ConnectionError, match=data[2]):
                reader.load(None, None, None, "none", False, 0)
            with pytest.raises(ValueError, match=f"{data[2]}|m:...:{data[2].split(':')[-1]}"):
                ops.load(redis.url("m"))
            client.mset(whole)
        client.delete("m:header:0")
        with pytest.raises(ValueError, match=r"m:\.\.\.:0"):
            ops.load(redis.url("m"))
        client.mset(whole)
        client.set("m:stale:5000", "x" * 10)
        with pytest.raises(ValueError, match=r"m:stale:5000.*left over"):
            ops.load(redis.url("m"))
        client.delete("m:stale:5000")
        # The last key: no key follows that would reveal the gap.
        client.delete(max(data, key=lambda key: int(key.split(":")[-1])))
        with pytest.raises(ValueError, match="t5"):
            ops.load(redis.url("m"))
        client.mset(whole)
        # A key that is not a string is not part of the file.
        client.rpush("m:list:77", "a")
        assert_same(ops.load(redis.url("m"), verify="all"), LARGE)


def test_damage_is_noticed(redis: RedisServer) -> None:
    ops.save(redis.url("m"), {"x": torch.ones(1000)})
    (key,) = (key for key, size in redis.sizes().items() if size == 4000)
    with redis.client() as client:
        client.setrange(key, 777, "!")
    with pytest.raises(tensorizer_ops.errors.HashMismatch, match="'x'"):
        ops.load(redis.url("m"), verify="crc32")
