"""Small files that are replaced only if they are what the caller knows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from local_servers.azure_server import Azure, Recorded, Refusal
from local_servers.redis_server import RedisServer
from local_servers.s3_server import S3
from local_servers.web import Web
from support.aws_server import Aws
from tensorizer_ops import _core, errors

THREADS, INCREMENTS = 4, 25


class Place(NamedTuple):
    uri: str
    options: dict[str, str]

    def swap(self, known: bytes | None, content: bytes, **more: str) -> bool:
        return _core.swap(self.uri, known, content, list((self.options | more).items()))

    def read(self) -> bytes:
        while True:
            try:
                bytes_of = _core.RemoteBytes(self.uri, list(self.options.items()), 0, None, 1000)
                return bytes_of.read(0, 1000)
            except errors.Unavailable as error:
                if "has changed" not in str(error):
                    raise


@pytest.fixture(params=["folder", "s3", "azure", "redis", "dav"])
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    aws: Aws,
    redis: RedisServer,
    azure: Azure,
    dav: str,
) -> Place:
    name = tmp_path.name
    return {
        "folder": Place(str(tmp_path / "new" / name), {}),
        "s3": Place(f"s3://bucket/{name}", aws.options()),
        "azure": Place(azure.uri(name), azure.options()),
        "redis": Place(redis.url(name), {}),
        "dav": Place(f"{dav}/{name}", {}),
    }[request.param]


def test_only_what_is_known_is_replaced(place: Place) -> None:
    assert not place.swap(b"never there", b"x")
    with pytest.raises(FileNotFoundError):
        place.read()
    assert place.swap(None, b"one")
    assert not place.swap(None, b"two")
    assert not place.swap(b"other", b"two")
    assert place.read() == b"one"
    assert place.swap(b"one", b"two")
    assert not place.swap(b"one", b"three")
    assert place.read() == b"two"
    # The one who wrote it may ask again, after a response that was lost.
    assert place.swap(b"one", b"two")
    assert place.swap(None, b"two")


def test_nobody_loses_a_change(place: Place) -> None:
    """Several threads count at the same time."""
    if place.uri.startswith(("s3:", "http:")):
        pytest.skip("these servers compare and replace in two steps")
    assert place.swap(None, b"0")

    def count(thread: int) -> None:
        for i in range(INCREMENTS):
            done = False
            while not done:
                known = place.read()
                # What nobody else writes.
                done = place.swap(known, b"%d %d-%d" % (int(known.split()[0]) + 1, thread, i))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(count, range(THREADS)))
    assert int(place.read().split()[0]) == THREADS * INCREMENTS


def test_what_is_no_place_for_it(tmp_path: Path, web: Web, s3: S3) -> None:
    for uri in ("fd:1", "hf://a/b/c"):
        with pytest.raises(errors.InvalidArgument, match="cannot be replaced on a condition"):
            Place(uri, {}).swap(None, b"x")
    with pytest.raises(errors.InvalidArgument, match="only files of up to 16777216 bytes"):
        Place(str(tmp_path / "large"), {}).swap(None, bytes((16 << 20) + 1))
    with pytest.raises(errors.IsADirectory):
        Place(str(tmp_path), {}).swap(b"x", b"y")
    (tmp_path / "link").symlink_to("target")
    assert Place(str(tmp_path / "link"), {}).swap(None, b"x")
    assert not (tmp_path / "link").is_symlink() and not (tmp_path / "target").exists()
    # It sends no ETag.
    (s3.root / "bucket" / "swapped").write_bytes(b"x")
    with pytest.raises(errors.Unavailable, match="sends no ETag"):
        Place(s3.uri("swapped"), s3.options()).swap(b"x", b"y")


def test_a_bucket_that_is_not_there(aws: Aws) -> None:
    """It is no file that another process has replaced."""
    place = Place("s3://nobucket/x", aws.options())
    with pytest.raises(errors.NotFound, match="status 404"):
        place.swap(None, b"1")


@pytest.mark.parametrize("status", [409, 412])
def test_a_conflict_in_azure(azure: Azure, status: int) -> None:
    """Azure has another status for a blob that should not be there, and one for leases."""
    place = Place(azure.uri("conflict"), azure.options())
    assert place.swap(None, b"1") or place.read()

    def refuse(request: Recorded) -> None:
        if request.method == "PUT":
            raise Refusal(status, "Conflict")

    azure.before = refuse
    try:
        assert not place.swap(place.read(), b"2")
    finally:
        azure.before = None


def test_folders_without_locks(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / ".a.swap").symlink_to("nowhere")
    with pytest.raises(errors.InvalidArgument, match="no file can be locked"):
        Place(str(tmp_path / "a"), {}).swap(b"x", b"y")
    assert (tmp_path / "a").read_bytes() == b"x"
