"""Tensors loaded one after another from a server: the number and size of the requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import tensorizer_ops
from local_servers.s3_server import S3, s3_server
from local_servers.web import Web
from support.process import fork_python
from support.recorder import recorder
from support.samples import assert_same, same
from support.small_tensors import KEY, NAMES, SMALL, load, make_old, small_server
from tensorizer_ops import DecryptionParams, TensorDeserializer
from tensorizer_ops.stream_io import open_stream

Reader = torch.classes.tensorizer.Reader

# The largest number of requests for all tensors together.
MOST = 8


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with small_server(tmp_path_factory.mktemp("web")) as server:
        yield server


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        tensorizer_ops.save(str(server.root / "bucket" / "small.tensors"), SMALL)
        make_old(server.root / "bucket" / "small.tensors")
        yield server


@dataclass
class Place:
    """Where `small.tensors` is. `asked` returns the number of requests since the last call."""

    uri: str
    options: dict[str, str]
    asked: Callable[[], int]


@contextmanager
def _web(request: pytest.FixtureRequest) -> Iterator[Place]:
    web = request.getfixturevalue("web")
    yield Place(web.url("small.tensors"), {}, lambda: len(web.requests()))


@contextmanager
def _s3(request: pytest.FixtureRequest) -> Iterator[Place]:
    s3 = request.getfixturevalue("s3")
    with recorder(s3.port) as between:
        options = s3.options(s3_endpoint=f"http://127.0.0.1:{between.port}")
        yield Place("s3://bucket/small.tensors", options, lambda: len(between.take()))


@contextmanager
def _redis(request: pytest.FixtureRequest) -> Iterator[Place]:
    redis = request.getfixturevalue("redis")
    tensorizer_ops.save(redis.url("small"), SMALL)
    before = 0

    def asked() -> int:
        """Counts reads by their EXECs: one on the read's connection, and one on the guard."""
        nonlocal before
        with redis.client() as client:
            stats = client.info("commandstats")
        before, now = stats["cmdstat_exec"]["calls"], stats["cmdstat_exec"]["calls"] - before
        return int(now) // 2

    yield Place(redis.url("small"), {}, asked)


@pytest.fixture(params=[_web, _s3, _redis], ids=["http", "s3", "redis"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with request.param(request) as found:
        found.asked()
        yield found


@pytest.mark.parametrize("verify", ["none", "all"])
def test_one_after_another(place: Place, verify: str) -> None:
    reader = Reader(place.uri, place.options)
    for name in NAMES:
        assert same(load(reader, name, verify=verify)[name], SMALL[name])
    assert place.asked() <= MOST


def test_into_tensors_that_there_are(place: Place) -> None:
    reader = Reader(place.uri, place.options)
    for name in NAMES:
        out = torch.empty(1024)
        reader.load_into([name], [out], "none", 0)
        assert same(out, SMALL[name])
    assert place.asked() <= MOST


def test_what_is_stored_of_them(place: Place) -> None:
    reader = Reader(place.uri, place.options)
    for name in NAMES:
        assert reader.stored(name)["name"] == name
    assert place.asked() <= MOST


def test_backwards(place: Place) -> None:
    reader = Reader(place.uri, place.options)
    for name in reversed(NAMES):
        assert same(load(reader, name)[name], SMALL[name])
    assert place.asked() <= MOST + 2


def test_a_jump_asks_once_and_for_nothing_else(place: Place) -> None:
    reader = Reader(place.uri, place.options)
    load(reader, *NAMES[:2])
    for i in (700, 1400, 500, 900):
        place.asked()
        load(reader, NAMES[i])
        assert place.asked() == 1


# Loads with TensorDeserializer.


def all_of(lazy: TensorDeserializer) -> dict[str, torch.Tensor]:
    return {name: lazy[name] for name in lazy}


WAYS: dict[str, Callable[[TensorDeserializer], dict[str, torch.Tensor]]] = {
    "keys": all_of,
    "items": lambda lazy: dict(lazy.items()),
    "keys backwards": lambda lazy: {name: lazy[name] for name in reversed(list(lazy))},
    "tensors": lambda lazy: {name: tensor for _, _, name, tensor in lazy.read_tensors()},
    "arrays": lambda lazy: {
        name: torch.from_numpy(array) for _, _, name, array, *_ in lazy.read_numpy_arrays()
    },
}
HOWS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "verified": {"verify_hash": True},
    "cast": {"dtype": torch.float64},
    "one thread": {"num_readers": 1},
    "with gaps": {"filter_func": lambda name: int(name.split(".")[1]) % 3 > 0},
}


@pytest.mark.parametrize("how", HOWS.values(), ids=HOWS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_deserializer(
    web: Web, way: Callable[[TensorDeserializer], dict[str, torch.Tensor]], how: dict[str, Any]
) -> None:
    web.requests()
    with TensorDeserializer(web.url("small.tensors"), device="cpu", lazy_load=True, **how) as lazy:
        loaded = way(lazy)
    assert len(web.requests()) <= MOST
    wanted = {name: t for name, t in SMALL.items() if how.get("filter_func", bool)(name)}
    if loaded[NAMES[-1]].dtype != torch.float32:
        wanted = {name: tensor.double() for name, tensor in wanted.items()}
    assert_same({name: loaded[name].detach() for name in wanted}, wanted)
    assert loaded.keys() == wanted.keys()


def test_an_encrypted_file(web: Web) -> None:
    web.requests()
    with TensorDeserializer(
        web.url("encrypted.tensors"),
        device="cpu",
        lazy_load=True,
        encryption=DecryptionParams.from_key(KEY),
    ) as lazy:
        assert_same({name: tensor.detach() for name, tensor in all_of(lazy).items()}, SMALL)
    assert len(web.requests()) <= MOST


def sent(web: Web) -> int:
    """Returns the number of bytes that the server has sent since the last call."""
    return sum(int(line.split('" ')[1].split()[1]) for line in web.requests())


def test_the_first_one_takes_no_others(web: Web) -> None:
    for take in (
        lambda lazy: lazy["t200"],
        lambda lazy: next(lazy.read_tensors()),
        lambda lazy: next(lazy.read_numpy_arrays(filter_func=lambda name: name == "t200")),
    ):
        web.requests()
        with TensorDeserializer(web.url("large.tensors"), device="cpu", lazy_load=True) as lazy:
            take(lazy)
        assert sent(web) < 2 << 20


def test_a_stream_and_its_reader_ask_once(web: Web) -> None:
    web.requests()
    for options in ({}, {"memory_ceiling": "2097152"}):
        with TensorDeserializer(web.url("few.tensors"), device="cpu", options=options) as few:
            assert len(few) == 20
        assert len(web.requests()) == 1
    with (
        open_stream(web.url("few.tensors")) as stream,
        TensorDeserializer(stream, device="cpu", lazy_load=True) as lazy,
    ):
        assert same(lazy[NAMES[0]].detach(), SMALL[NAMES[0]])
    # Other options need a separate connection.
    web.requests()
    with TensorDeserializer(web.url("few.tensors"), device="cpu", options={"header.X-Other": "1"}):
        assert len(web.requests()) == 2


def test_memory_is_bounded_and_given_back(web: Web) -> None:
    code = """
import sys, torch, tensorizer_ops
from support.process import resident

reader = torch.classes.tensorizer.Reader(sys.argv[1], {"memory_ceiling": str(8 << 20)})
names = list(reader.names())
load = lambda name: reader.load([name], None, None, "none", True, 0)
load(names[5])
before = resident()
most = 0
for i, name in enumerate(names):
    load(name)
    if i % 16 == 0:
        most = max(most, resident() - before)
assert most < 14 << 20, most
load(names[100])
load(names[300])
assert resident() - before < 4 << 20, resident() - before
"""
    fork_python(code, web.url("large.tensors"))


def test_large_tensors_are_read_as_ever(web: Web) -> None:
    tensors = {f"t{i}": torch.rand(4 << 20) for i in range(3)}  # 16 MiB each
    tensorizer_ops.save(str(web.root / "three.tensors"), tensors)
    make_old(web.root / "three.tensors")
    reader = Reader(web.url("three.tensors"), None)
    web.requests()
    for name in tensors:
        assert same(load(reader, name)[name], tensors[name])
    assert len(web.requests()) == 1 + 3 * 2
    assert_same(load(reader, *tensors), tensors)


def test_from_many_threads(web: Web) -> None:
    reader = Reader(web.url("small.tensors"), None)
    with ThreadPoolExecutor(8) as threads:
        for name, loaded in zip(
            NAMES, threads.map(lambda name: load(reader, name), NAMES), strict=True
        ):
            assert same(loaded[name], SMALL[name])


# Ranges of streams.


def test_a_stream_asks_for_its_range_only(web: Web, s3: S3) -> None:
    data = (web.root / "large.tensors").read_bytes()
    for begin, end in ((0, 10), (5_000_000, 5_000_100), (100, 3_000_000), (90_000_000, 1 << 40)):
        web.requests()
        with open_stream(web.url("large.tensors"), begin=begin, end=end) as stream:
            assert stream.read() == data[begin:end]
        assert sent(web) == len(data[begin:end])
    with recorder(s3.port) as between:
        given = {
            "s3_endpoint": f"http://127.0.0.1:{between.port}",
            "s3_access_key_id": s3.options()["s3_access_key_id"],
            "s3_secret_access_key": s3.options()["s3_secret_access_key"],
            "force_http": True,
        }
        with open_stream("s3://bucket/small.tensors", begin=70_000, end=70_500, **given) as stream:
            expected = (s3.root / "bucket" / "small.tensors").read_bytes()[70_000:70_500]
            assert stream.read() == expected
        assert [r.headers.get("range") for r in between.take()] == ["bytes=70000-70499"]


@pytest.mark.parametrize("kind", ["tensors", "safetensors", "encrypted"])
def test_parts_that_are_checked_follow_each_other(web: Web, kind: str) -> None:
    """A chunk is read in whole, and begins in front of what the load takes of it."""
    tensors = {"a": torch.randn(500, 1000), "b": torch.randn(300, 1000)}
    path = web.root / ("parts.safetensors" if kind == "safetensors" else f"{kind}-parts.tensors")
    options = {"key": "named:parts"} if kind == "encrypted" else {}
    tensorizer_ops.keys.add("parts", key=KEY)
    tensorizer_ops.save(path, tensors, hashes="chunked", options=options)
    make_old(path)
    reader = Reader(web.url(path.name), options)
    for verify in ("all", "none"):
        for name, rows in (("a", 125), ("b", 60)):
            for first in range(0, len(tensors[name]), rows):
                part = slice(first, first + rows)
                loaded = tensorizer_ops.load_slices(reader, {name: part}, verify=verify)
                assert same(loaded[name], tensors[name][part])
    tensorizer_ops.keys.remove("parts")
