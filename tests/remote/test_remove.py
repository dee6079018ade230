"""Removing a file, wherever saves write."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.azure_server import Azure
from local_servers.redis_server import RedisServer
from local_servers.s3_server import S3
from local_servers.web import PASSWORD, Web
from support.places import SINKS, To, World
from support.process import run_python
from support.recorder import Recorded, recorder
from support.relay import relay
from support.samples import assert_same
from tensorizer_ops import _core
from tensorizer_ops._base.folder import Folder

ops = torch.ops.tensorizer
errors = tensorizer_ops.errors

TENSORS = {"x": torch.arange(100), "layers:0": torch.ones(3)}


@pytest.fixture
def sink(world: World, request: pytest.FixtureRequest) -> Iterator[To]:
    with SINKS[request.param](world) as to:
        yield to


def remove(uri: str, options: dict[str, str] | None = None) -> None:
    _core.remove(uri, list((options or {}).items()))


PLACES = ["file", "put", "s3", "azure", "redis"]


@pytest.mark.parametrize("sink", PLACES, indirect=True)
def test_one_file_is_removed(sink: To) -> None:
    beside = f"{sink.uri}.other"
    ops.save(beside, TENSORS, options=sink.options)
    for _ in range(2):
        ops.save(sink.uri, TENSORS, options=sink.options)
        assert sink.read() is not None
        for _ in range(2):
            remove(sink.uri, sink.options)
            assert sink.read() is None
    with pytest.raises(FileNotFoundError):
        ops.load(sink.uri, options=sink.options)
    assert_same(ops.load(beside, options=sink.options), TENSORS)
    remove(beside, sink.options)


@pytest.mark.parametrize("sink", PLACES, indirect=True)
def test_a_folder_removes_its_files(sink: To) -> None:
    place, _, name = sink.uri.rpartition("/")
    ops.save(sink.uri, TENSORS, options=sink.options)
    if "redis" in sink.uri:  # a URI without a prefix names no file
        place, name = sink.uri, "inner"
    folder = Folder(place, sink.options)
    ops.save(folder.uri(name), TENSORS, options=sink.options)
    assert folder.has(name)
    folder.remove(name)
    assert not folder.has(name)
    with pytest.raises(errors.InvalidArgument, match="not the name of a file"):
        folder.remove("..")


@pytest.mark.parametrize("sink", ["descriptor", "pipe"], indirect=True)
def test_streams_are_not_removed(sink: To) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"cannot be removed|no file"):
        remove(sink.uri)
    ops.save(sink.uri, TENSORS)  # which the pipe waits for
    assert sink.read()


def test_folders_and_links(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to folder").symlink_to(tmp_path / "folder")
    for folder, error in (
        ("folder", IsADirectoryError),
        ("folder/", IsADirectoryError),
        ("to folder/", FileNotFoundError),
    ):
        with pytest.raises(error):
            remove(f"{tmp_path}/{folder}")
    for link in ("link", "to folder"):
        remove(str(tmp_path / link))
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_web_servers(web: Web) -> None:
    stored = web.root / "put" / "put-moved" / "x"
    ops.save(web.url("put-moved/x"), TENSORS)
    remove(web.url("put-moved/x"))
    assert not stored.exists()
    ops.save(web.url("put/y"), TENSORS)
    for place, kind, status in (
        ("put-private/y", PermissionError, "401"),
        ("forbidden/y", PermissionError, "403"),
        ("put-small/y", ConnectionError, "405"),
    ):
        with pytest.raises(kind, match=status):
            remove(web.url(place))
    wrong = web.url("put-private/y").replace("//", "//me:wrong-sesame@")
    with pytest.raises(PermissionError, match="401") as caught:
        remove(wrong)
    assert "sesame" not in str(caught.value)
    assert (web.root / "put" / "y").exists()
    secret = PASSWORD.replace(" ", "%20")
    remove(web.url("put-private/y").replace("//", f"//me:{secret}@"))
    assert not (web.root / "put" / "y").exists()


def test_a_folder_of_a_web_server_stays(web: Web) -> None:
    ops.save(web.url("put/folder/x"), TENSORS)
    with pytest.raises(errors.InvalidArgument, match="ends in a slash"):
        remove(web.url("put/folder/"))
    for name in ("folder", "folder/?x"):
        with pytest.raises(ConnectionError, match=r"40\d"):
            remove(web.url(f"put/{name}"))
    assert_same(ops.load(web.url("put/folder/x")), TENSORS)


def test_a_lost_response_is_no_error(web: Web, s3: S3, azure: Azure) -> None:
    for port, uri, options in (
        (web.port, web.url("put/lost"), {}),
        (s3.port, s3.uri("lost"), s3.options()),
        (azure.port, azure.uri("lost"), azure.options()),
    ):
        ops.save(uri, TENSORS, options=options)
        with recorder(port) as proxy:
            lost: list[Recorded] = []

            def loses(request: Recorded, lost: list[Recorded] = lost) -> bool:
                lost.append(request)
                return len(lost) == 1

            proxy.loses = loses
            through = {n: v.replace(str(port), str(proxy.port)) for n, v in options.items()}
            remove(uri.replace(f":{port}/", f":{proxy.port}/"), through)
            assert [request.method for request in proxy.requests] == ["DELETE"] * 2
        with pytest.raises(FileNotFoundError):
            ops.load(uri, options=options)


def test_a_lost_response_of_redis(redis: RedisServer) -> None:
    ops.save(redis.url("m"), TENSORS)
    with relay(redis.port) as between:
        between.swallow(b"EXEC\r\n")
        remove(f"redis://127.0.0.1:{between.port}/m")
    assert redis.values() == {}


def test_keys_of_others_stay(redis: RedisServer) -> None:
    with redis.client() as client:
        client.set("m:user:17", "no file")
    remove(redis.url("m"))
    ops.save(redis.url("m:inner"), TENSORS)
    ops.save(redis.url("ma"), TENSORS)
    others = redis.values()
    ops.save(redis.url("n"), TENSORS)
    remove(redis.url("n"))
    assert redis.values() == others and b"m:user:17" in {k.encode() for k in others}


def test_rights_are_needed(s3: S3, azure: Azure, redis: RedisServer) -> None:
    for uri, options in (
        (s3.uri("mine"), s3.options(s3_secret_access_key="wrong-sesame")),
        (azure.uri("mine"), azure.options(az_account_key="c2VzYW1l")),
        (redis.url("mine", "me:sesame@"), {}),
    ):
        with pytest.raises(PermissionError) as caught:
            remove(uri, options)
        assert "sesame" not in str(caught.value) and "c2VzYW1l" not in str(caught.value)
    with pytest.raises(errors.InvalidArgument, match="did you mean"):
        remove(s3.uri("mine"), {"s3_endpoin": "x"})
    with pytest.raises(errors.InvalidArgument, match=r"hf://.* cannot be removed"):
        remove("hf://org/model/file")


# A server that does not answer, and a signal that comes while the removal waits for it.
SCRIPT = """
import os, signal, sys, threading, time
from tensorizer_ops import _core

signal.signal(signal.SIGINT, signal.default_int_handler)
begin = time.monotonic()
timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))  # needs the GIL
timer.start()
try:
    _core.remove(sys.argv[1], [("retries", "0"), ("stall_timeout", "20")])
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - begin < 15, "torch" in sys.modules)
"""


@pytest.mark.parametrize("scheme", ["http", "redis"])
def test_a_signal_ends_a_removal_without_torch(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/x"
        assert run_python(SCRIPT, uri).stdout.split() == [b"interrupted", b"True", b"False"]
