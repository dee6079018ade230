"""Tied tensors in files on servers: their bytes are requested once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.redis_server import RedisServer
from local_servers.s3_server import s3_server
from local_servers.web import Web, nginx
from support.samples import assert_same, same, sample
from support.tied import NAMES, SHARE, STORED, outputs, share_memory, tied

ops = torch.ops.tensorizer
Reader = torch.classes.tensorizer.Reader

LARGE = sample(torch.float32, (1 << 20,))


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with nginx(tmp_path_factory.mktemp("web")) as server:
        yield server


@pytest.mark.parametrize("verify", ["none", "all"])
def test_bytes_are_requested_once(web: Web, verify: str) -> None:
    names = ["large", "large.2", "large.3"]
    path = str(web.root / "large.tensors")
    ops.save(path, dict.fromkeys(names, LARGE), options=SHARE)
    url = web.url("large.tensors")

    def received(load: str) -> float:
        reader = Reader(url, None)
        if load == "load":
            tensors = list(reader.load(None, None, None, verify).values())
            assert share_memory(*tensors)
        else:
            tensors = [torch.zeros_like(LARGE) for _ in names]
            reader.load_into(names, tensors, verify)
        for tensor in tensors:
            assert same(tensor, LARGE)
        count: float = reader.stats()["received"]
        return count

    for load in ("load", "load_into"):
        assert received(load) < 1.5 * LARGE.nbytes


def test_redis(redis: RedisServer) -> None:
    url = redis.url("tied")
    ops.save(url, tied(), options=SHARE)
    with redis.client() as client:
        keys = [key.decode().split(":")[1] for key in client.scan_iter()]
    assert sorted(set(keys)) == sorted([*STORED, "header"])
    loaded = ops.load(url, verify="all")
    assert_same(loaded, tied())
    assert share_memory(loaded["w"], loaded["w.2"], loaded["w.3"])


def test_s3(tmp_path: Path) -> None:
    with s3_server(tmp_path) as s3:
        options = s3.options()
        ops.save("s3://bucket/m.tensors", tied(), options={**options, **SHARE})
        assert_same(ops.load("s3://bucket/m.tensors", verify="all", options=options), tied())
        out = outputs()
        ops.load_into("s3://bucket/m.tensors", NAMES, list(out.values()), options=options)
        assert_same(out, tied())
        tensorizer_ops.convert(
            "s3://bucket/m.tensors", str(tmp_path / "copy"), source_options=options
        )
        assert ops.names(str(tmp_path / "copy")) == NAMES
