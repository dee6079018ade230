"""``to_redis(force=True)`` replaces a file, whoever wrote it, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorizer
import torch

import tensorizer_ops
from local_servers.redis_server import RedisServer
from support.samples import assert_same
from tensorizer_ops import TensorDeserializer

OLD = {"a": torch.zeros(1000), "gone": torch.ones(3), "b": torch.zeros(7, dtype=torch.int64)}
NEW = {"a": torch.ones(1200), "b": torch.ones(5), "c:d": torch.arange(9)}
# A file whose prefix begins with that of the other one.
INNER = {"a": torch.full((4,), 7.0)}


@pytest.fixture
def new(tmp_path: Path) -> str:
    tensorizer_ops.save(tmp_path / "new", NEW)
    return str(tmp_path / "new")


@pytest.mark.parametrize("writer", ["tensorizer", "to_redis", "save"])
@pytest.mark.parametrize("prefix", ["m", "a:[b]*"])
def test_over_an_older_file(
    redis: RedisServer, new: str, tmp_path: Path, writer: str, prefix: str
) -> None:
    old = str(tmp_path / "old")
    tensorizer_ops.save(old, OLD)
    tensorizer_ops.save(redis.url(f"{prefix}:a"), INNER)
    with redis.client() as client:
        if writer == "tensorizer":
            tensorizer.TensorDeserializer(old, device="cpu", lazy_load=True).to_redis(
                client, prefix
            )
        elif writer == "to_redis":
            TensorDeserializer(old, "cpu", lazy_load=True).to_redis(client, prefix)
        else:
            tensorizer_ops.save(redis.url(prefix), OLD)
        TensorDeserializer(new, "cpu", lazy_load=True).to_redis(client, prefix, force=True)
    assert_same(tensorizer_ops.load(redis.url(prefix), verify="all"), NEW)
    assert_same(tensorizer_ops.load(redis.url(f"{prefix}:a"), verify="all"), INNER)
    keys = redis.values()
    redis.clear()
    tensorizer_ops.save(redis.url(f"{prefix}:a"), INNER)
    tensorizer_ops.save(redis.url(prefix), NEW)
    assert redis.values() == keys, "the same keys as those of save()"


def test_keys_of_many_colons(redis: RedisServer, new: str) -> None:
    """A comparison for each colon would take minutes."""
    longer = "m:" + "a:" * (1 << 20)
    inner = {
        f"{longer}x:header:0": b"",
        f"{longer}x:a:5": b"1",
        "m:z:header:0": b"",
        "m:z:a:3": b"2",
    }
    with redis.client() as client:
        tensorizer_ops.save(redis.url("m"), OLD)
        client.mset({**inner, f"{longer}y:7": b"", "m:zz:3": b"", "m:z:4": b""})
        TensorDeserializer(new, "cpu", lazy_load=True).to_redis(client, "m", force=True)
    assert_same(tensorizer_ops.load(redis.url("m"), verify="all"), NEW)
    keys = redis.values().keys()
    assert inner.keys() < keys
    assert keys.isdisjoint({f"{longer}y:7", "m:zz:3", "m:z:4"}), "they were those of the file"


def test_a_write_that_fails_changes_nothing(redis: RedisServer, new: str) -> None:
    tensorizer_ops.save(redis.url("m"), OLD)
    before = redis.values()
    with redis.client() as client:
        sets = 0

        class Failing:
            def __getattr__(self, name: str) -> Any:
                return getattr(client, name)

            def set(self, *key: Any, **how: Any) -> None:
                nonlocal sets
                sets += 1
                if sets == 3:
                    raise KeyboardInterrupt
                client.set(*key, **how)

        with pytest.raises(KeyboardInterrupt):
            TensorDeserializer(new, "cpu", lazy_load=True).to_redis(Failing(), "m", force=True)
    assert redis.values() == before
