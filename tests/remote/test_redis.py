"""Files in Redis that this library and PyPI's tensorizer write and read."""

from __future__ import annotations

import gc
import os

import pytest
import torch
from tensorizer import TensorDeserializer

from local_servers.classic_redis import classic_save
from local_servers.redis_server import RedisServer
from support.process import fork, wait
from support.samples import (
    DTYPES,
    NUMPY_NAMES,
    SHAPES,
    assert_same,
    random_bytes,
    same,
    sample,
    zoo,
)

ops = torch.ops.tensorizer
Reader, Writer = torch.classes.tensorizer.Reader, torch.classes.tensorizer.Writer

# Each tensor takes several pieces in a load, and its last piece is small.
LARGE = {f"t{i}": sample(torch.float32, (600, 1000 + i), i) for i in range(6)}


def classic_load(url: str, **options: object) -> TensorDeserializer:
    return TensorDeserializer(url, device="cpu", verify_hash=True, **options)


def every_kind() -> dict[str, torch.Tensor]:
    """Returns every dtype in every shape that tensorizer can store."""
    return {
        f"{name}/{shape.replace(' ', '_')}": sample(dtype, SHAPES[shape], seed)
        for seed, (name, dtype) in enumerate(DTYPES.items())
        for shape in SHAPES
        if name in NUMPY_NAMES or 0 not in SHAPES[shape]
    }


@pytest.mark.parametrize("verify", ["none", "crc32", "all"])
def test_loads_what_tensorizer_wrote(redis: RedisServer, path: str, verify: str) -> None:
    tensors = every_kind() | {"white space: and colons:5": torch.ones(3), "é🙂": torch.ones(2)}
    classic_save(redis, path, "m", tensors)
    assert_same(ops.load(redis.url("m"), verify=verify), tensors)
    assert_same(ops.load(redis.url("m"), verify=verify, threads=1), tensors)


def test_loads_trees_and_modules_of_tensorizer(redis: RedisServer, path: str) -> None:
    classic_save(redis, path, "tree", {"a": [torch.ones(3), {"b": torch.zeros(2)}]})
    assert ops.names(redis.url("tree")) == ['\x1e["a",0]', '\x1e["a",1,"b"]']
    assert_same(
        ops.load(redis.url("tree"), verify="all"),
        {'\x1e["a",0]': torch.ones(3), '\x1e["a",1,"b"]': torch.zeros(2)},
    )


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_tensorizer_loads_what_we_wrote(redis: RedisServer, mode: str) -> None:
    tensors = every_kind() | {"é🙂": torch.ones(2)} | LARGE
    ops.save(redis.url("a/b"), tensors)
    with classic_load(redis.url("a/b"), lazy_load=mode == "lazy") as loaded:
        for name, tensor in tensors.items():
            assert same(loaded[name], tensor), name


def test_the_keys_are_those_of_tensorizer(redis: RedisServer, path: str) -> None:
    """They equal, byte for byte, the keys that tensorizer writes for the same file."""
    ops.save(path, zoo())
    with TensorDeserializer(path, device="cpu", lazy_load=True) as lazy, redis.client() as client:
        lazy.to_redis(client, "m")
    theirs = redis.values()
    redis.clear()
    ops.save(redis.url("m"), zoo())
    assert redis.values() == theirs


def test_what_is_empty_has_no_key_or_an_empty_one(redis: RedisServer) -> None:
    tensors = {
        "first": torch.empty(0),
        "x": torch.ones(3),
        "between": torch.empty(2, 0),
        "meta": torch.empty(4, device="meta"),
        "y": torch.ones(()),
        "last": torch.empty(0, dtype=torch.bfloat16),
    }
    ops.save(redis.url("m"), tensors)
    expected = tensors | {"meta": torch.zeros(4)}
    assert_same(ops.load(redis.url("m"), verify="all"), expected)
    with classic_load(redis.url("m")) as loaded:
        assert_same(loaded, expected)
    with redis.client() as client:
        for name in ("first", "between", "last"):
            (header,) = (key for key in redis.sizes() if key.startswith(f"m:{name}:"))
            end = int(header.split(":")[-1]) + client.strlen(header)
            client.set(f"m:{name}:{end}", b"")
    assert_same(ops.load(redis.url("m"), verify="all"), expected)


@pytest.mark.parametrize("threads", [1, 0])
def test_large_tensors(redis: RedisServer, threads: int) -> None:
    large = {"one": random_bytes((9 << 20) + 3, 1)} | LARGE
    turned = {"turned": sample(torch.int16, (1000, 2001)).t(), "strided": large["one"][::3]}
    ops.save(redis.url("m"), large | turned, threads=threads)
    options = {"connections": "3", "memory_ceiling": str(1 << 20)}
    for given in (None, options):
        loaded = ops.load(redis.url("m"), verify="all", threads=threads, options=given)
        assert_same(loaded, large | turned)
    outputs = [torch.zeros(2001, 1000, dtype=torch.int16).t(), torch.zeros(600, 1003)]
    ops.load_into(redis.url("m"), ["turned", "t3"], [outputs[0].t(), outputs[1]])
    assert_same(
        {"turned": outputs[0].t(), "t3": outputs[1]},
        {"turned": turned["turned"], "t3": LARGE["t3"]},
    )


def test_many_small_tensors(redis: RedisServer) -> None:
    tensors = {f"layer.{i}": sample(torch.float32, (i % 40,), i) for i in range(3000)}
    ops.save(redis.url("m"), tensors)
    assert len(redis.sizes()) == 1 + 3000 + sum(1 for t in tensors.values() if t.numel())
    assert_same(ops.load(redis.url("m"), verify="all"), tensors)
    some = ["layer.2999", "layer.7", "layer.1500"]
    assert_same(ops.load(redis.url("m"), names=some), {name: tensors[name] for name in some})


def test_writer(redis: RedisServer) -> None:
    tensors = {f"{'long name ' * 20}{i}": sample(torch.float32, (50,), i) for i in range(600)}
    tensors |= {"large": LARGE["t0"], "turned": LARGE["t1"].t(), "empty": torch.empty(0)}
    writer = Writer(redis.url("m"), None)
    for name, tensor in tensors.items():
        writer.add(name, tensor, 2, 0)
    with pytest.raises(FileNotFoundError):
        ops.load(redis.url("m"))
    writer.close()
    assert_same(ops.load(redis.url("m"), verify="all"), tensors)
    with redis.client() as client:
        assert all(client.ttl(key) == -1 for key in redis.sizes())


def test_in_a_script_and_in_a_graph(redis: RedisServer) -> None:
    ops.save(redis.url("m"), zoo())

    @torch.jit.script
    def load(url: str) -> torch.Tensor:
        return torch.ops.tensorizer.load(url)["float32"]

    assert same(load(redis.url("m")), zoo()["float32"])
    url = redis.url("m")
    compiled = torch.compile(lambda: ops.load(url)["float32"] + 0, backend="eager", fullgraph=True)
    assert same(compiled(), zoo()["float32"] + 0)


def test_a_fork_has_connections_of_its_own(redis: RedisServer) -> None:
    ops.save(redis.url("m"), LARGE)
    reader = Reader(redis.url("m"), None)
    reader.load(["t0"], None, None, "all", False, 0)
    writer = Writer(redis.url("n"), None)
    writer.add("x", torch.ones(3), 2, 0)

    def child() -> None:
        nonlocal writer
        assert_same(reader.load(None, None, None, "all", False, 0), LARGE)
        with pytest.raises(ValueError, match="before a fork"):
            writer.add("y", torch.ones(3), 2, 0)
        del writer
        gc.collect()

    assert wait(fork(child)) == 0
    assert_same(reader.load(None, None, None, "all", False, 0), LARGE)
    writer.close()
    assert ops.load(redis.url("n"))["x"].tolist() == [1, 1, 1]
    assert os.getpid() != 1


def test_stats(redis: RedisServer) -> None:
    ops.save(redis.url("m"), LARGE)
    reader = Reader(redis.url("m"), None)
    reader.load(None, None, None, "none", False, 0)
    stats = reader.stats()
    assert stats["received"] >= sum(tensor.nbytes for tensor in LARGE.values())
    assert stats["connections"] >= 2 and stats["requests"] > 10 and stats["transfer"] > 0
