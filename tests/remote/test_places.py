"""Behaviour that all sources and all sinks have in common."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import tensorizer_ops
from local_servers.redis_server import RedisServer, redis_server
from support.places import SINKS, SOURCES, To, World
from support.process import TICK, ticking
from support.raw_parse import parse
from support.samples import SAFETENSORS_NAMES, assert_same, raw, sample, zoo

ops = torch.ops.tensorizer
Reader = torch.classes.tensorizer.Reader
Writer = torch.classes.tensorizer.Writer

# Small tensors of every kind, one of several slices and parts, and one larger than any stage.
TENSORS = {
    **zoo(),
    "large": sample(torch.float32, (3000, 1000), 1),
    "view": sample(torch.int64, (1300, 1000), 2).t(),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(7),
}

# Those that a safetensors file can hold.
SHARED = [*SAFETENSORS_NAMES, "large", "view", "empty", "scalar"]

KEY = {"key": "named:places"}

# A safetensors file, and its tensors in the order of its header.
Foreign = tuple[bytes, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("stored") / "m.tensors"
    ops.save(str(path), TENSORS)
    data = path.read_bytes()
    path.unlink()
    return data


@pytest.fixture(params=SOURCES)
def source_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(params=SINKS)
def sink(request: pytest.FixtureRequest, world: World) -> Iterator[To]:
    with SINKS[request.param](world) as place:
        yield place


@pytest.mark.parametrize("verify", ["none", "crc32", "all"])
def test_loads(world: World, stored: bytes, source_kind: str, verify: str) -> None:
    with SOURCES[source_kind](world, stored) as place:
        assert_same(ops.load(place.uri, verify=verify, options=place.options), TENSORS)


@pytest.fixture(scope="module")
def foreign() -> Foreign:
    data = safetensors.torch.save({n: t.contiguous() for n, t in TENSORS.items() if n in SHARED})
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return data, {name: TENSORS[name] for name in header}


def test_loads_safetensors(world: World, foreign: Foreign, source_kind: str) -> None:
    data, tensors = foreign
    with SOURCES[source_kind](world, data) as place:
        assert_same(ops.load(place.uri, options=place.options), tensors)


SLICES: dict[str, Any] = {
    "large": (slice(7, None, 3), slice(100, -100)),
    "view": (..., slice(2, 5)),
    "int8": 3,
    "float64": (slice(1, 4), slice(None, None, 2)),
    "empty": (..., slice(2)),
}


@pytest.mark.parametrize("kind", ["tensors", "encrypted", "safetensors"])
def test_loads_slices(
    world: World, foreign: Foreign, secret: bytes, source_kind: str, kind: str, path: str
) -> None:
    data, tensors = foreign
    options = KEY if kind == "encrypted" else {}
    if kind != "safetensors":
        ops.save(path, tensors, options=options)
        data = Path(path).read_bytes()
    expected = {n: t[SLICES[n]].contiguous() if n in SLICES else t for n, t in tensors.items()}
    with SOURCES[source_kind](world, data) as place:
        loaded = tensorizer_ops.load(place.uri, slices=SLICES, options=place.options | options)
    assert_same({name: loaded[name] for name in expected}, expected)


def test_a_tensor_is_sliced_twice(world: World, stored: bytes, source_kind: str) -> None:
    with SOURCES[source_kind](world, stored) as place:
        load = lambda: ops.load_slices(  # noqa: E731
            place.uri, ["large"] * 2, [0, 1], [1, 1], [5, 3], [400, 9], options=place.options
        )
        if place.sequential:
            with pytest.raises(
                ValueError, match=r"'large'.* loaded twice .* can be read only once"
            ):
                load()
            return
        one, two = load()
    assert raw(one) == raw(TENSORS["large"][:, 5:405].contiguous())
    assert raw(two) == raw(TENSORS["large"][:, 3:12].contiguous())


@pytest.mark.parametrize("remote", ["http", "s3"])
def test_a_server_sends_little_more_than_a_slice(world: World, remote: str, path: str) -> None:
    x = torch.rand(12, 3 << 18)  # rows of 3 MiB: longer than any wait is worth
    ops.save(path, {"x": x}, hashes="none")
    with SOURCES[remote](world, Path(path).read_bytes()) as place:
        # Of a file that is older than its responses, the first bytes are not read again.
        for stored in (world.web.root, world.s3.root / "bucket"):
            if (stored / world.name()).exists():
                os.utime(stored / world.name(), (1e9, 1e9))
        reader = Reader(place.uri, place.options)
        reader.names()
        before = reader.stats()
        columns = (slice(None), slice(3 << 17, (3 << 17) + 9000))
        assert torch.equal(tensorizer_ops.load_slices(reader, {"x": columns})["x"], x[columns])
        after = reader.stats()
        assert after["received"] - before["received"] == 12 * 9000 * 4
        assert after["requests"] - before["requests"] == 12
        # Gaps that are shorter than a wait are read.
        dense = (slice(4, 5), slice(0, 3 << 18, 2))
        assert torch.equal(tensorizer_ops.load_slices(reader, {"x": dense})["x"], x[dense])
        again = reader.stats()
        assert (3 << 20) - 100 < again["received"] - after["received"] < 3 << 20
        assert again["requests"] - after["requests"] <= 16


def test_encrypts_safetensors(
    world: World, foreign: Foreign, secret: bytes, source_kind: str, path: str
) -> None:
    data, tensors = foreign
    with SOURCES[source_kind](world, data) as place:
        tensorizer_ops.encrypt(place.uri, path, key="named:places", source_options=place.options)
    loaded = ops.load(path, verify="all", options=KEY | {"require_authenticated": "true"})
    assert_same({name: loaded[name] for name in tensors}, tensors)
    assert loaded.keys() == tensors.keys()


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bytes]:
    """The same tensors, encrypted with the key named "places"."""
    tensorizer_ops.keys.add("places", key=bytes(range(32)))
    path = tmp_path_factory.mktemp("secret") / "m.tensors"
    ops.save(str(path), TENSORS, options=KEY)
    data = path.read_bytes()
    path.unlink()
    yield data
    tensorizer_ops.keys.remove("places")


def test_loads_what_is_encrypted(world: World, secret: bytes, source_kind: str) -> None:
    with SOURCES[source_kind](world, secret) as place:
        options = place.options | KEY | {"require_authenticated": "true"}
        assert_same(ops.load(place.uri, verify="all", options=options), TENSORS)


def test_encrypts(world: World, secret: bytes, sink: To, path: str) -> None:
    ops.save(sink.uri, TENSORS, options=sink.options | KEY)
    Path(path).write_bytes(content(sink))
    options = KEY | {"require_authenticated": "true"}
    assert_same(ops.load(path, verify="all", options=options), TENSORS)


def test_rewrites(world: World, stored: bytes, secret: bytes, source_kind: str, path: str) -> None:
    with SOURCES[source_kind](world, secret) as place:
        tensorizer_ops.decrypt(place.uri, path, key="named:places", source_options=place.options)
    assert Path(path).read_bytes() == stored


def test_loads_into_tensors_that_are_there(world: World, stored: bytes, source_kind: str) -> None:
    wanted = {name: TENSORS[name] for name in ("large", "view", "bfloat16")}
    outputs = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    with SOURCES[source_kind](world, stored) as place:
        names, tensors = list(outputs), list(outputs.values())
        ops.load_into(place.uri, names, tensors, verify="all", options=place.options)
    assert_same(outputs, wanted)


@pytest.mark.parametrize("kind", ["tensors", "safetensors"])
def test_loads_and_casts_a_part(
    world: World, stored: bytes, foreign: Foreign, source_kind: str, kind: str
) -> None:
    names = ["scalar", "large", "int8", "empty"]
    with SOURCES[source_kind](world, stored if kind == "tensors" else foreign[0]) as place:
        loaded = ops.load(place.uri, names=names, dtype=torch.float64, options=place.options)
    wanted = {name: TENSORS[name] for name in names}
    assert_same(loaded, wanted | {n: wanted[n].double() for n in ("large", "empty")})


def test_verifies_what_it_does_not_keep(world: World, stored: bytes, source_kind: str) -> None:
    entry = next(e for e in parse(stored).entries if e.name == b"large")
    damaged = bytearray(stored)
    damaged[entry.data_offset + 5_000_000] ^= 16
    for data in (stored, bytes(damaged)):
        with SOURCES[source_kind](world, data) as place:
            if data is stored:
                ops.verify(place.uri, options=place.options)
            else:
                with pytest.raises(tensorizer_ops.errors.HashMismatch, match="large"):
                    ops.verify(place.uri, options=place.options)
        for left in world.folder.iterdir():
            left.unlink()


@pytest.mark.parametrize("size", [0, 7, 10, 3000, 0.5, -9], ids=str)
@pytest.mark.parametrize("kind", ["tensors", "safetensors"])
def test_files_that_end_early(
    world: World, stored: bytes, foreign: Foreign, source_kind: str, kind: str, size: int | float
) -> None:
    data = stored if kind == "tensors" else foreign[0]
    cut = int(size * len(data)) if isinstance(size, float) else size
    if cut == 0 and source_kind == "redis":
        return  # a file without keys does not exist
    with (
        SOURCES[source_kind](world, data[:cut]) as place,
        pytest.raises(tensorizer_ops.errors.InvalidFormat) as error,
    ):
        ops.load(place.uri, options=place.options)
    assert place.uri.removeprefix("file://") in str(error.value)


def test_readers_load_in_any_order_from_any_thread(
    world: World, stored: bytes, source_kind: str
) -> None:
    with SOURCES[source_kind](world, stored) as place:
        reader = Reader(place.uri, place.options)
        assert reader.names() == list(TENSORS)
        if place.sequential:
            assert_same(reader.load(None, None, None, "all", False, 0), TENSORS)
            return

        def load(number: int) -> None:
            names = list(TENSORS)[number % 3 :: 3][::-1]
            loaded = reader.load(names, None, None, "crc32", False, 0)
            assert_same(loaded, {name: TENSORS[name] for name in names})

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(load, range(6)))
        reader.close()


def content(place: To) -> bytes:
    data = place.read()
    assert data is not None
    return data


@pytest.mark.parametrize("hashes", ["all", "none"])
@pytest.mark.parametrize("which", ["all", "one", "none"])
def test_saves(sink: To, path: str, which: str, hashes: str) -> None:
    tensors = {"all": TENSORS, "one": {"x": torch.ones(3)}, "none": {}}[which]
    ops.save(sink.uri, tensors, hashes=hashes, options=sink.options)
    ops.save(path, tensors, hashes=hashes)
    assert content(sink) == Path(path).read_bytes()


def test_a_writer_saves(sink: To) -> None:
    if sink.ascending:
        with pytest.raises(ValueError, match="index first"):
            Writer(sink.uri, sink.options)
        return
    writer = Writer(sink.uri, sink.options)
    for name, tensor in TENSORS.items():
        writer.add(name, tensor, 2, 0)
        if sink.replaces:
            assert sink.read() is None
    writer.close()
    parsed = {entry.name.decode(): entry for entry in parse(content(sink)).entries}
    assert list(parsed) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert parsed[name].data == raw(tensor), name
        assert parsed[name].hashes == {0: parsed[name].digests()[0]}, name


def test_what_is_dropped_leaves_what_was_there(sink: To) -> None:
    if sink.ascending or not sink.replaces:
        return
    ops.save(sink.uri, {"x": torch.ones(3)}, options=sink.options)
    before = content(sink)
    for end in ("drop", "abort"):
        writer = Writer(sink.uri, sink.options)
        for name, tensor in TENSORS.items():
            writer.add(name, tensor, 2, 0)
        if end == "abort":
            writer.abort()
        del writer
        assert content(sink) == before


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("after", [0.005, 0.05, 0.2])
def test_a_signal_ends_a_save(sink: To, path: str, after: float) -> None:
    """It ends soon. The target then has its old content or all of the new content."""
    tensors = {f"t{i}": TENSORS["large"] for i in range(12)}
    allowed = []
    if sink.replaces:
        ops.save(sink.uri, {"x": torch.ones(3)}, options=sink.options)
        ops.save(path, tensors)
        # A signal may come after the last byte, before the server has confirmed it.
        allowed = [content(sink), Path(path).read_bytes()]

    def stop(*_: object) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGALRM, stop)
    took: list[int] = []
    try:
        # A timing that a busy machine spoiled is measured again.
        while not took or (took[-1] > 8 and len(took) < 5):
            with ticking() as ticks:
                try:
                    signal.setitimer(signal.ITIMER_REAL, after)
                    ops.save(sink.uri, tensors, options=sink.options)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    return
                except Interrupted:
                    took.append(ticks() - round(after / TICK))
                except RuntimeError as error:
                    # The save had not begun: torch still looked at its arguments.
                    assert "Expected a value of type" in str(error) and "Interrupted" in str(error)
            assert not sink.replaces or content(sink) in allowed
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert min(took) <= 8
