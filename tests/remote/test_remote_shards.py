"""Sharded safetensors models on web servers and in S3."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.delay import delay, requests_in_a_row
from local_servers.s3_server import KEY_ID, S3, SECRET, s3_server
from local_servers.waiting import LAST_RESORT
from local_servers.web import Web, nginx
from support.recorder import DENIED, Recorded, recorder
from support.samples import assert_same, sample
from support.shards import split, write_shards

ops = torch.ops.tensorizer
Reader = torch.classes.tensorizer.Reader

COUNT = 4
MODEL = {f"layer {i}.weight": sample(torch.float32, (200, 500 + i), i) for i in range(16)}  # 6 MB
CHANGED = {name: tensor + 1 for name, tensor in MODEL.items()}
NAME = "model.safetensors.index.json"
SHARDS = {"max_shard_size": "2000000"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("m") / "a b", split(MODEL, COUNT)).parent


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Web]:
    with nginx(tmp_path_factory.mktemp("web")) as server:
        shutil.copytree(folder, server.root / "a b")
        for file in (server.root / "a b").iterdir():
            os.utime(file, (1_600_000_000, 1_600_000_000))
        yield server


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        shutil.copytree(folder, server.root / "bucket" / "a b")
        yield server


def assert_whole(loaded: dict[str, torch.Tensor], model: dict[str, torch.Tensor] = MODEL) -> None:
    assert_same({name: loaded[name] for name in model}, model)
    assert len(loaded) == len(model)


def load(s3: S3, folder: str) -> dict[str, torch.Tensor]:
    place = f"s3://bucket/{folder}/{NAME}"
    loaded: dict[str, torch.Tensor] = ops.load(place, verify="all", options=s3.options())
    return loaded


@pytest.mark.parametrize("place", ["", "no-etag/", "moved/", "gzip/"])
def test_web_servers(web: Web, place: str) -> None:
    assert_whole(ops.load(web.url(f"{place}a%20b/{NAME}")))
    assert_whole(ops.load(web.url(f"{place}a%20b/{NAME}?download=true#x"), threads=1))


def test_folders_on_servers(web: Web, s3: S3) -> None:
    assert_whole(ops.load(web.url("a%20b")))
    assert_whole(ops.load(web.url("a%20b/?download=true")))
    assert_whole(ops.load("s3://bucket/a b", options=s3.options()))
    ours = {"a": torch.arange(3)}
    tensorizer_ops.save(web.root / "ours" / "model.tensors", ours)
    web.requests()
    assert_same(ops.load(web.url("ours")), ours)
    for missing in ("none", "none/m.tensors"):
        web.requests()
        with pytest.raises(OSError, match=rf"'{web.url(missing)}'"):
            ops.load(web.url(missing))
        assert len(web.requests()) == (1 if "." in missing else 4)


def test_damage_is_named_by_its_shard(web: Web) -> None:
    """Also in bytes that were read ahead."""
    folder = web.root / "damaged"
    model = {f"t{i}": torch.full((1000,), float(i)) for i in range(6)}
    tensorizer_ops.save(folder / "model.safetensors", model, options={"max_shard_size": "8000"})
    shard = folder / "model-00002-of-00003.safetensors"
    place = Reader(str(shard), None).stored("t3")["data_offset"]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    reader = Reader(web.url(f"damaged/{NAME}"), None)
    for name in model:
        if name == "t3":
            url = web.url(f"damaged/{shard.name}")
            with pytest.raises(tensorizer_ops.errors.HashMismatch, match=f"{place} of '{url}' on"):
                reader.load([name], None, None, "all", False, 0)
        else:
            reader.load([name], None, None, "all", False, 0)


def test_tls(web: Web) -> None:
    assert_whole(ops.load(web.tls_url(f"a%20b/{NAME}"), options={"ca_file": web.ca}))


def test_each_shard_takes_one_request_to_open(web: Web) -> None:
    web.requests()
    reader = Reader(web.url(f"a%20b/{NAME}"), None)
    assert len(reader.names()) == len(MODEL)
    lines = web.requests()
    assert len(lines) == 1 + COUNT
    assert reader.stats()["requests"] == 1 + COUNT
    assert_whole(reader.load(None, None, None, "none", False, 0))
    # What opening brought is not fetched again, and each tensor is in one range of its shard.
    assert len(web.requests()) <= len(MODEL)
    received = reader.stats()["received"]
    size = sum(file.stat().st_size for file in (web.root / "a b").iterdir())
    assert received <= size + 1000


def test_shards_are_opened_at_the_same_time(web: Web) -> None:
    many = write_shards(web.root / "many", split(MODEL, 12)).parent
    with delay(web.port, 0.2) as between:
        assert len(ops.names(f"http://127.0.0.1:{between.port}/many/{NAME}")) == len(MODEL)
        exchanges = between.exchanges()
    shutil.rmtree(many)
    assert len(exchanges) == 13
    assert requests_in_a_row(exchanges) == 2


def test_shards_share_connections(web: Web) -> None:
    """A load of many shards takes no more connections than that of one file."""
    model = {f"t{i}": sample(torch.float32, (500, 600), i) for i in range(24)}  # 29 MB
    index = write_shards(web.root / "sharing", split(model, 12))
    for most in ("16", "3"):
        reader = Reader(
            web.url(f"sharing/{index.name}"), {"connections": most, "chunk_size": "100000"}
        )
        web.requests()
        loaded = reader.load(None, None, None, "none", False, 0)
        assert_same({name: loaded[name] for name in model}, model)
        lines = web.requests()
        assert len(lines) > 100
        used = {line.split(" ")[0] for line in lines}
        assert 1 < len(used) <= int(most)
        assert reader.stats()["connections"] == len(used)
        assert reader.stats()["requests"] == len(lines)
    shutil.rmtree(index.parent)


def test_servers_without_ranges_are_named(web: Web) -> None:
    with pytest.raises(ConnectionError, match=r"model-0000.*without ranges"):
        ops.load(web.url(f"no-ranges/a%20b/{NAME}"))


def test_signed_urls_are_refused(web: Web) -> None:
    with pytest.raises(ValueError, match="valid for this one file") as info:
        ops.load(web.url(f"a%20b/{NAME}?X-Amz-Date=1&X-Amz-Signature=0123456789"))
    assert "0123456789" not in str(info.value)


def test_a_missing_shard_is_named(web: Web) -> None:
    copy = web.root / "less"
    shutil.copytree(web.root / "a b", copy)
    (copy / "model-00003-of-00004.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-00003-of-00004.*one of its 4 shards"):
        ops.load(web.url(f"less/{NAME}"))


def test_slices_and_parts_come_from_their_shards(web: Web) -> None:
    reader = Reader(web.url(f"a%20b/{NAME}"), {"chunk_size": "100000"})
    name = "layer 7.weight"
    parts = tensorizer_ops.load_slices(reader, {name: (slice(10, 20), slice(3, 50))})
    assert_same(parts, {name: MODEL[name][10:20, 3:50]})


def test_s3(s3: S3) -> None:
    with recorder(s3.port) as between:
        options = s3.options(s3_endpoint=f"http://127.0.0.1:{between.port}")
        reader = Reader(f"s3://bucket/a b/{NAME}", options)
        assert len(reader.names()) == len(MODEL)
        requests = between.take()
        assert len(requests) == 1 + COUNT + 1
        assert requests[0].path.endswith(NAME) and requests[-1].path.endswith(NAME)
        assert_whole(reader.load(None, None, None, "none", False, 0))
        assert len(between.take()) <= len(MODEL)


def test_a_model_is_copied_from_s3_to_one_file(s3: S3, tmp_path: Path) -> None:
    tensorizer_ops.convert(
        f"s3://bucket/a b/{NAME}", tmp_path / "m.tensors", source_options=s3.options()
    )
    assert_whole(tensorizer_ops.load(tmp_path / "m.tensors", verify="all"))


def test_saves_to_s3(s3: S3) -> None:
    target = "s3://bucket/saved/model.safetensors"
    with recorder(s3.port) as between:
        options = s3.options(s3_endpoint=f"http://127.0.0.1:{between.port}")
        tensorizer_ops.save(target, MODEL, options=options | SHARDS)
        requests = between.take()
    saved = [name for name in s3.objects() if name.startswith("saved/")]
    tag = saved[0].removeprefix("saved/model-")[:8]
    shards = [f"saved/model-{tag}-{i:05}-of-00004.safetensors" for i in range(1, 5)]
    assert saved == [*shards, f"saved/{NAME}"] and re.fullmatch("[0-9a-f]{8}", tag)
    assert not [request for request in requests if request.method == "DELETE"], "nothing was there"
    written = [request.path.endswith(NAME) for request in requests if request.method != "GET"]
    assert written.index(True) == len(written) - 1, "the index comes last"
    assert_whole(load(s3, "saved"))


def test_a_save_to_s3_of_one_file_removes_the_old_index(s3: S3) -> None:
    target = "s3://bucket/again/model.safetensors"
    options = s3.options()
    tensorizer_ops.save(target, MODEL, options=options | SHARDS)
    tensorizer_ops.save(target, CHANGED, options=options | SHARDS)
    assert_whole(load(s3, "again"), CHANGED)
    tensorizer_ops.save(target, MODEL, options=options | {"max_shard_size": "100000000"})
    assert_whole(ops.load(target, verify="all", options=options))
    with pytest.raises(FileNotFoundError):
        load(s3, "again")


def objects(s3: S3, folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (s3.root / "bucket" / folder).iterdir()}


@pytest.mark.parametrize(("shard", "method"), [(4, "PUT"), (3, "POST")])
def test_a_save_to_s3_that_fails_leaves_the_old_model(s3: S3, shard: int, method: str) -> None:
    """A part of one shard of four is not uploaded, or the upload is not completed."""
    target = "s3://bucket/part/model.safetensors"
    tensorizer_ops.save(target, MODEL, options=s3.options() | SHARDS)
    before = objects(s3, "part")
    with recorder(s3.port) as between:
        options = s3.options(s3_endpoint=f"http://127.0.0.1:{between.port}", retries="0")
        between.breaks = lambda request: (
            f"0000{shard}-of-00004" in request.path
            and request.method == method
            and "uploads" not in request.query
        )
        with pytest.raises(ConnectionError):
            tensorizer_ops.save(target, CHANGED, options=options | SHARDS)
    assert objects(s3, "part") == before
    assert_whole(load(s3, "part"))


def test_a_save_to_s3_that_fails_while_an_object_appears(s3: S3) -> None:
    """It does not know yet that an upload is complete. Then it removes that object too."""
    target = "s3://bucket/appears/model.safetensors"
    tensorizer_ops.save(target, MODEL, options=s3.options() | SHARDS)
    before = objects(s3, "appears")
    asked, withdrawn = threading.Event(), threading.Event()

    def completes(request: Recorded, shard: str) -> bool:
        ask = (request.method, list(request.query))
        return shard in request.path and ask == ("POST", ["uploadId"])

    def fail(request: Recorded) -> bool:
        if request.method == "DELETE":
            withdrawn.set()
        if request.method == "HEAD" and "00001-of-00004" in request.path:
            asked.set()
            assert withdrawn.wait(LAST_RESORT)
        if not completes(request, "00003-of-00004"):
            return False
        assert asked.wait(LAST_RESORT)
        return True

    with recorder(s3.port) as between:
        options = s3.options(s3_endpoint=f"http://127.0.0.1:{between.port}", retries="0")
        between.breaks = fail
        between.loses = lambda request: completes(request, "00001-of-00004")
        with pytest.raises(ConnectionError):
            tensorizer_ops.save(target, CHANGED, options=options | SHARDS)
    assert objects(s3, "appears") == before


def test_a_save_to_s3_replaces_the_old_model(s3: S3) -> None:
    """The index is replaced when all new shards are there, and the old shards go after that."""
    target = "s3://bucket/replaced/model.safetensors"
    tensorizer_ops.save(target, MODEL, options=s3.options() | SHARDS)
    before = objects(s3, "replaced").keys()
    with recorder(s3.port) as between:
        options = s3.options(s3_endpoint=f"http://127.0.0.1:{between.port}")
        tensorizer_ops.save(target, CHANGED, options=options | SHARDS)
        requests = [request for request in between.take() if request.method != "GET"]
    index = next(i for i, request in enumerate(requests) if request.path.endswith(NAME))
    assert requests[index].method == "PUT"
    removed = [request.path.rpartition("/")[2] for request in requests[index + 1 :]]
    assert {request.method for request in requests[index + 1 :]} == {"DELETE"}
    assert {*removed, NAME} == before
    after = objects(s3, "replaced").keys()
    assert after & before == {NAME} and len(after) == 5
    assert_whole(load(s3, "replaced"), CHANGED)


@pytest.mark.parametrize("place", ["s3", "web"])
def test_a_model_that_is_replaced_while_it_is_opened(s3: S3, web: Web, place: str) -> None:
    """A shard is missing, or the index has changed: then the index is read again."""
    options = s3.options() if place == "s3" else {}
    root = "s3://bucket" if place == "s3" else str(web.root)
    target = f"{root}/race/model.safetensors"
    tensorizer_ops.save(target, MODEL, options=options | SHARDS)
    time.sleep(1.1)  # objects have times in whole seconds
    saved: list[str] = []

    def save(request: Recorded) -> bool:
        if "00002-of-00004" in request.path and not saved:
            saved.append(request.path)
            tensorizer_ops.save(target, CHANGED, options=options | SHARDS)
        return False

    with recorder(s3.port if place == "s3" else web.port) as between:
        between.breaks = save
        url = f"http://127.0.0.1:{between.port}"
        if place == "s3":
            options |= {"s3_endpoint": url, "connections": "1"}
        found = ops.load(f"{root if options else url}/race/{NAME}", verify="all", options=options)
    assert saved
    assert_whole(found, CHANGED)


@pytest.mark.parametrize("fails", [False, True])
def test_two_first_saves_to_s3_at_the_same_time(s3: S3, fails: bool) -> None:
    """Another one begins and ends before the first one writes its index, or before it fails."""
    place = f"beside-{fails}"
    target = f"s3://bucket/{place}/model.safetensors"
    saved: list[str] = []

    def save(request: Recorded) -> bool:
        last = "00003-of-00004" in request.path and "uploadId" in request.query
        if saved or request.method not in ("PUT", "POST"):
            return False
        if not (last and request.method == "POST" if fails else request.path.endswith(NAME)):
            return False
        saved.append(request.path)
        tensorizer_ops.save(target, CHANGED, options=s3.options() | SHARDS)
        return fails

    with recorder(s3.port) as between:
        between.breaks = save
        options = s3.options(s3_endpoint=f"http://127.0.0.1:{between.port}", retries="0") | SHARDS
        with pytest.raises(ConnectionError) if fails else nullcontext():
            tensorizer_ops.save(target, MODEL, options=options)
    assert saved
    assert_whole(load(s3, place), CHANGED if fails else MODEL)


def test_a_save_to_s3_that_may_not_remove_the_old_shards(s3: S3) -> None:
    """They stay beside the new ones. The old index must go if the new model has none."""
    target = "s3://bucket/kept/model.safetensors"
    tensorizer_ops.save(target, MODEL, options=s3.options() | SHARDS)
    before = objects(s3, "kept")
    with recorder(s3.port) as between:
        between.answers = lambda request: DENIED if request.method == "DELETE" else None
        options = s3.options(s3_endpoint=f"http://127.0.0.1:{between.port}")
        tensorizer_ops.save(target, CHANGED, options=options | SHARDS)
        after = objects(s3, "kept")
        assert before.items() - after.items() == {(NAME, before[NAME])} and len(after) == 9
        with pytest.raises(PermissionError, match=rf"cannot remove .*{NAME}.*DeleteObject"):
            tensorizer_ops.save(target, MODEL, options=options | {"max_shard_size": "100000000"})
    assert_whole(load(s3, "kept"), CHANGED)


def test_a_save_to_s3_that_may_not_read_gives_its_shards_new_names(s3: S3) -> None:
    """It cannot know which ones an older index uses."""
    target = "s3://bucket/unread/model.safetensors"
    tensorizer_ops.save(target, MODEL, options=s3.options() | SHARDS)
    before = objects(s3, "unread")
    with recorder(s3.port) as between:
        between.answers = lambda request: DENIED if request.method == "GET" else None
        options = s3.options(s3_endpoint=f"http://127.0.0.1:{between.port}")
        tensorizer_ops.save(target, CHANGED, options=options | SHARDS)
    after = objects(s3, "unread")
    assert before.items() - after.items() == {(NAME, before[NAME])} and len(after) == 9


def test_credentials_are_fetched_once(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    keys = {"Version": 1, "AccessKeyId": KEY_ID, "SecretAccessKey": SECRET}
    script = tmp_path / "keys.sh"
    script.write_text(f"echo called >> {calls}\ncat <<'END'\n{json.dumps(keys)}\nEND\n")
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = sh {script}\n")
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("HOME", str(tmp_path))
    options = {
        name: value for name, value in s3.options().items() if not name.endswith(("_key", "key_id"))
    }
    assert_whole(ops.load(f"s3://bucket/a b/{NAME}", options=options))
    assert calls.read_text().count("called") == 1
    target = "s3://bucket/keys/model.safetensors"
    tensorizer_ops.save(target, MODEL, options=options | SHARDS)
    assert calls.read_text().count("called") == 2
