"""Every kind of source and sink, behind one interface."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from local_servers.azure_server import Azure
from local_servers.redis_server import RedisServer
from local_servers.s3_server import S3
from local_servers.web import Web
from support.process import Drain, feed


@dataclass
class From:
    """Where to load from: a URI and its options."""

    uri: str
    options: dict[str, str] = field(default_factory=dict)
    sequential: bool = False  # can be read only once and in order


@dataclass
class To:
    """Where to save to. `read` returns what is stored there, or None if there is no file."""

    uri: str
    read: Callable[[], bytes | None]
    options: dict[str, str] = field(default_factory=dict)
    ascending: bool = False  # needs bytes in order, so a Writer cannot use it
    replaces: bool = True  # a failed save leaves the old content


@dataclass
class World:
    """A folder of the test's own, and the servers shared by the test module."""

    folder: Path
    web: Web
    s3: S3
    redis: RedisServer
    azure: Azure

    def name(self) -> str:
        return f"{self.folder.name}.tensors"


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@contextmanager
def _file(world: World, data: bytes) -> Iterator[From]:
    path = world.folder / "source"
    path.write_bytes(data)
    yield From(str(path))


@contextmanager
def _descriptor(world: World, data: bytes) -> Iterator[From]:
    path = world.folder / "source"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield From(f"fd:{descriptor}")
    finally:
        os.close(descriptor)


@contextmanager
def _pipe(world: World, data: bytes) -> Iterator[From]:
    fifo = str(world.folder / "fifo")
    with feed(fifo, data):
        yield From(fifo, sequential=True)


@contextmanager
def _web(world: World, data: bytes, folder: str = "", tls: bool = False) -> Iterator[From]:
    path = world.web.root / world.name()
    path.write_bytes(data)
    try:
        if tls:
            yield From(world.web.tls_url(world.name()), {"ca_file": world.web.ca})
        else:
            yield From(world.web.url(folder + world.name()), sequential=folder != "")
    finally:
        path.unlink()


@contextmanager
def _s3(world: World, data: bytes) -> Iterator[From]:
    path = world.s3.root / "bucket" / world.name()
    path.write_bytes(data)
    try:
        yield From(f"s3://bucket/{world.name()}", world.s3.options())
    finally:
        path.unlink()


@contextmanager
def _azure(world: World, data: bytes) -> Iterator[From]:
    blob = world.azure.client(world.name())
    blob.upload_blob(data)
    try:
        yield From(world.azure.uri(world.name()), world.azure.options())
    finally:
        blob.delete_blob()


@contextmanager
def _redis(world: World, data: bytes) -> Iterator[From]:
    """Splits the file into keys at offsets unrelated to its tensors."""
    name = world.name()
    offsets = range(0, len(data), 100_003)
    keys = [f"{name}:{'piece' if offset else 'header'}:{offset}" for offset in offsets]
    with world.redis.client() as client:
        for key, offset in zip(keys, offsets, strict=True):
            client.set(key, data[offset : offset + 100_003])
        try:
            yield From(world.redis.url(name))
        finally:
            if keys:
                client.delete(*keys)


SOURCES: dict[str, Callable[[World, bytes], AbstractContextManager[From]]] = {
    "file": _file,
    "descriptor": _descriptor,
    "pipe": _pipe,
    "http": _web,
    "http without ranges": lambda world, data: _web(world, data, folder="no-ranges/"),
    "https": lambda world, data: _web(world, data, tls=True),
    "s3": _s3,
    "azure": _azure,
    "redis": _redis,
}


@contextmanager
def _to_file(world: World) -> Iterator[To]:
    path = world.folder / "target"
    yield To(str(path), lambda: _content(path))


@contextmanager
def _to_descriptor(world: World) -> Iterator[To]:
    path = world.folder / "target"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)

    def read() -> bytes | None:
        os.lseek(descriptor, 0, os.SEEK_SET)  # the next save starts at the beginning as well
        return path.read_bytes() or None

    try:
        yield To(f"fd:{descriptor}", read, replaces=False)
    finally:
        os.close(descriptor)


@contextmanager
def _to_pipe(world: World) -> Iterator[To]:
    fifo = str(world.folder / "fifo")
    drain = Drain(fifo)
    with drain:

        def read() -> bytes | None:
            drain.wait()
            return drain.data

        yield To(fifo, read, ascending=True, replaces=False)


@contextmanager
def _to_web(world: World) -> Iterator[To]:
    path = world.web.root / "put" / world.name()
    try:
        yield To(world.web.url(f"put/{world.name()}"), lambda: _content(path), ascending=True)
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _to_s3(world: World) -> Iterator[To]:
    path = world.s3.root / "bucket" / world.name()

    def read() -> bytes | None:
        if (data := _content(path)) is not None:
            return data
        world.s3.settle()
        return _content(path)

    try:
        yield To(f"s3://bucket/{world.name()}", read, world.s3.options())
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _to_azure(world: World) -> Iterator[To]:
    blob = world.azure.client(world.name())

    def read() -> bytes | None:
        found: bytes | None = blob.download_blob().readall() if blob.exists() else None
        return found

    try:
        yield To(world.azure.uri(world.name()), read, world.azure.options())
    finally:
        if blob.exists():
            blob.delete_blob()


@contextmanager
def _to_redis(world: World) -> Iterator[To]:
    name = world.name()

    def keys() -> list[str]:
        with world.redis.client() as client:
            found = [key.decode() for key in client.scan_iter(match=f"{name}:*", count=1000)]
        return sorted(found, key=lambda key: (int(key.rpartition(":")[2]), key))

    def read() -> bytes | None:
        with world.redis.client() as client:
            # The eight zero bytes that end a file are not stored in any key.
            return b"".join(client.mget(keys())) + bytes(8) if keys() else None

    try:
        yield To(world.redis.url(name), read)
    finally:
        if left := keys():
            with world.redis.client() as client:
                client.delete(*left)


SINKS: dict[str, Callable[[World], AbstractContextManager[To]]] = {
    "file": _to_file,
    "descriptor": _to_descriptor,
    "pipe": _to_pipe,
    "put": _to_web,
    "s3": _to_s3,
    "azure": _to_azure,
    "redis": _to_redis,
}
