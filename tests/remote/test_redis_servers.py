"""Redis servers with databases, passwords and limits, and URIs and servers that are refused."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.redis_server import RedisServer, redis_server
from support.samples import sample

ops = torch.ops.tensorizer
Reader, Writer = torch.classes.tensorizer.Reader, torch.classes.tensorizer.Writer

LARGE = {f"t{i}": sample(torch.float32, (600, 1000 + i), i) for i in range(6)}


def test_databases(redis: RedisServer) -> None:
    ops.save(redis.url("m"), {"x": torch.ones(3)}, options={"db": "7"})
    assert redis.sizes() == {}
    assert len(redis.sizes(7)) == 3
    assert ops.load(redis.url("m"), options={"db": "7"})["x"].tolist() == [1, 1, 1]
    with pytest.raises(FileNotFoundError, match="in database 0"):
        ops.load(redis.url("m"))
    with pytest.raises(ValueError, match="DB index"):
        ops.load(redis.url("m"), options={"db": "99"})
    # As in tensorizer, a number in the path is part of the prefix.
    ops.save(redis.url("7/m"), {"x": torch.zeros(3)})
    assert "7/m:header:0" in redis.sizes()


def test_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "se@me: %"
    with redis_server(tmp_path, password=secret) as server:
        url = server.url("m", login=":se%40me:%20%25@")
        ops.save(url, {"x": torch.ones(3)})
        monkeypatch.setenv("A_PASSWORD", secret)
        options = {"redis_password": "env:A_PASSWORD"}
        assert ops.load(server.url("m"), options=options)["x"].tolist() == [1, 1, 1]
        ops.save(server.url("n"), {"x": torch.ones(3)}, options=options | {"db": "1"})
        with server.client() as client:
            client.acl_setuser(
                "reader",
                enabled=True,
                passwords=["+word"],
                categories=["+@read", "+@transaction"],
                keys=["m:*"],
            )
        assert ops.load(server.url("m", login="reader:word@"))["x"].tolist() == [1, 1, 1]
        for wrong, place in (
            (None, server.url("m")),
            (None, server.url("m", login=":sesame@")),
            ({"redis_password": "sesame"}, server.url("m")),
            ({"redis_user": "sesame", "redis_password": "sesame"}, url),
            ({"redis_password": "sesame", "db": "3"}, server.url("m")),
        ):
            for work in (ops.load, lambda url, **how: ops.save(url, {"x": torch.ones(2)}, **how)):
                with pytest.raises(PermissionError) as error:
                    work(place, options=wrong)
                assert "sesame" not in str(error.value) and secret not in str(error.value)
        with pytest.raises(PermissionError, match="NOPERM"):
            ops.save(server.url("m", login="reader:word@"), {"x": torch.ones(3)})
        with pytest.raises(ValueError, match="no password"):
            ops.load(server.url("m", login="reader@"))
        # A pickled reader contains no secret.
        assert pickle.loads(pickle.dumps(Reader(server.url("m"), options))).names() == ["x"]
        for place, given, advice in (
            (url, None, "pass it as an argument"),
            (server.url("m"), {"redis_password": "sesame"}, "name it"),
        ):
            with pytest.raises(ValueError, match=f"would keep: {advice}") as refused:
                pickle.dumps(Reader(place, given))
            assert "sesame" not in str(refused.value) and "%40me" not in str(refused.value)


def test_a_password_that_nobody_wants(redis: RedisServer) -> None:
    with pytest.raises(PermissionError, match="wants none"):
        ops.load(redis.url("m", login=":sesame@"))


def test_values_over_the_limit(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--proto-max-bulk-len", "1mb") as server:
        fits = {"x": torch.zeros(1 << 20, dtype=torch.uint8)}
        ops.save(server.url("m"), fits)
        before = server.values()
        for save in ("save", "writer"):
            with pytest.raises(ValueError, match=r"'large' has 1048577 bytes.*up to 1048576"):
                large = torch.zeros((1 << 20) + 1, dtype=torch.uint8)
                if save == "save":
                    ops.save(server.url("m"), {"y": torch.ones(3), "large": large})
                else:
                    Writer(server.url("m"), None).add("large", large, 2, 0)
            gc.collect()
            assert server.values() == before
        with pytest.raises(ValueError, match="the head has"):
            ops.save(server.url("m"), {f"{'n' * 1000}{i}": torch.ones(1) for i in range(1200)})
        assert server.values() == before


def test_a_server_without_room(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--maxmemory", "8mb") as server:
        ops.save(server.url("m"), {"x": torch.ones(3)})
        before = server.values()
        for tensors in (LARGE, {name: tensor.t() for name, tensor in LARGE.items()}):
            with pytest.raises(OSError, match="OOM") as error:
                ops.save(server.url("m"), tensors)
            assert isinstance(error.value, tensorizer_ops.errors.OutOfSpace)
            assert server.values() == before


def test_a_cluster_is_refused(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--cluster-enabled", "yes") as server:
        for work in (ops.load, lambda url: ops.save(url, {"x": torch.ones(3)})):
            with pytest.raises(ValueError, match="Redis Cluster"):
                work(server.url("m"))


URIS = {
    "redis://127.0.0.1": "no prefix",
    "redis://127.0.0.1//": "no prefix",
    "redis:///m": "no host",
    "redis://:6379/m": "no host",
    "redis://127.0.0.1:0/m": "port",
    "redis://127.0.0.1:65536/m": "port",
    "redis://127.0.0.1:x/m": "port",
    "redis://127.0.0.1/m?db=1": "no parameters",
    "redis://:se%zzsame@127.0.0.1/m": "'%'",
    "redis://[::1/m": "IPv6",
    "unix://": "no socket",
    "unix:///?prefix=m": "no socket",
    "unix:///run/": "no socket",
    "unix:///run/redis.sock": "no prefix",
    "unix:///run/redis.sock?": "no prefix",
    "unix:///run/redis.sock?prefix=": "no prefix",
    "unix:///run/redis.sock?db=1": "no prefix",
    "unix:///run/redis.sock?db=x&prefix=m": "'db'",
    "unix:///run/redis.sock?db=1&db=2&prefix=m": "twice",
    "unix:///run/redis.sock?prefix=m&prefix=n": "twice",
    "unix:///run/redis.sock?prefix=m&password=sesame": "'redis_password'",
    "unix:///run/redis.sock?prefix=m&sesame": "'redis_password'",
    "unix:///run/redis.sock?prefix=m#n": "'#'",
    "unix:///run/redis.sock?prefix=%zz": "'%'",
    "unix:///run/%00.sock?prefix=m": "NUL",
    f"unix:///{'x' * 107}?prefix=m": "107 bytes",
    "unix://host/run/redis.sock?prefix=m": "a host",
    "unix://run/redis.sock?prefix=m": "a host",
    "unix://:se/sesame@/run/redis.sock?prefix=m": "a host",
    "unix://:se?sesame@/run/redis.sock?prefix=m": "a host|parameter",
    "unix://:se%zzsame@/run/redis.sock?prefix=m": "'%'",
    "unix://sesame@/run/redis.sock?prefix=m": "no password",
    "rediss://127.0.0.1": "rediss://host/prefix",
    "rediss://127.0.0.1/m?ssl_cert_reqs=none": "no parameters",
    "rediss:///m": "no host",
}


@pytest.mark.parametrize("uri", URIS)
def test_uris_that_name_nothing(uri: str) -> None:
    for work in (ops.load, lambda uri: ops.save(uri, {"x": torch.ones(3)})):
        with pytest.raises(ValueError, match=URIS[uri]) as error:
            work(uri)
        assert "same" not in str(error.value)
