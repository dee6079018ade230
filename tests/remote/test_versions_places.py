"""Versions that are published on servers: S3, Azure, Redis, and web servers."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import tensorizer_ops
from local_servers.azure_server import Azure
from local_servers.redis_server import RedisServer
from local_servers.s3_server import S3
from local_servers.web import Web
from support.aws_server import Aws
from support.relay import reached_through, relay
from support.signer import Signer
from tensorizer_ops import Publisher, errors, follow


class Place(NamedTuple):
    uri: str
    options: dict[str, str]


def state_of(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.arange(3000) * step, "kept": torch.ones(100_000)}


def publish(place: Place, steps: range, **how: bool) -> Publisher:
    with Publisher(place.uri, whole_every=2, grace=0, options=place.options, **how) as publisher:
        for step in steps:
            publisher.publish(state_of(step), step=step)
    return publisher


def followed(place: Place, target: str | Path) -> list[int]:
    return [each.step for each in follow(place.uri, target, patience=0, options=place.options)]


@pytest.fixture(params=["s3", "azure", "redis", "dav"])
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    aws: Aws,
    redis: RedisServer,
    azure: Azure,
    dav: str,
) -> Place:
    name = tmp_path.name
    if request.param == "s3":
        return Place(f"s3://bucket/{name}", aws.options())
    if request.param == "azure":
        return Place(azure.uri(name), azure.options())
    if request.param == "redis":
        return Place(redis.url(name), {})
    urllib.request.urlopen(urllib.request.Request(f"{dav}/{name}", method="MKCOL")).close()
    return Place(f"{dav}/{name}", {})


def test_versions_on_a_server(place: Place, tmp_path: Path) -> None:
    target = tmp_path / "copy.tensors"
    assert followed(place, target) == []
    first = publish(place, range(1, 2))
    assert followed(place, target) == [1]
    second = publish(place, range(2, 8))
    assert followed(place, target) == [7]
    assert tensorizer_ops.load(target)["w"].equal(state_of(7)["w"])
    for publisher in (first, second):
        with Publisher(place.uri, options=place.options), pytest.raises(FileExistsError):
            publisher.publish(state_of(8), step=8)
    assert followed(place, tmp_path / "other.tensors") == [7]
    # What the list does not name any more is gone after the next version.
    there = tensorizer_ops._versions.listing.Place(place.uri, place.options)
    listing = there.understood(there.read() or b"")
    assert listing.versions[0].number > 1
    assert not there.folder.has(f"{1:08d}-{first._id}.tensors")


@pytest.mark.parametrize("kind", ["s3", "web"])
def test_servers_without_conditions(kind: str, s3: S3, web: Web, tmp_path: Path) -> None:
    name = tmp_path.name
    place = Place(s3.uri(name), s3.options()) if kind == "s3" else Place(web.url(f"put/{name}"), {})
    with pytest.raises(errors.InvalidArgument, match="give fenced=False"):
        publish(place, range(1, 3))
    publish(place, range(1, 4), fenced=False)
    assert followed(place, tmp_path / "copy.tensors") == [3]
    late = publish(place, range(4, 5), fenced=False)
    publish(place, range(5, 6), fenced=False)
    with pytest.raises(FileExistsError):
        late.publish(state_of(6), step=6)


def test_a_server_that_goes_away_and_comes_back(
    redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(redis.url("away"), {})
    publish(place, range(1, 2))
    target: dict[str, torch.Tensor] = {}
    with relay(redis.port) as server:
        uri, options = reached_through(server.port, "away", {})
        options |= {"retries": "0", "connect_timeout": "1"}
        versions = follow(uri, target, interval=0.01, options=options)
        assert next(versions).step == 1
    publish(place, range(2, 3))
    assert list(follow(uri, target, interval=0.01, patience=0.1, options=options)) == []
    assert caplog.text.count("waiting for it") == 1
    with pytest.raises(errors.Unavailable):
        Publisher(uri, options=options)


def test_a_folder_that_a_web_server_does_not_make(dav: str) -> None:
    with pytest.raises(errors.Unavailable, match=r"status 409: WebDAV .* no such folder"):
        Publisher(f"{dav}/nowhere")


def test_wrong_keys_of_s3_are_an_error(s3: S3) -> None:
    for wrong in ({"s3_secret_access_key": "wrong"}, {"s3_access_key_id": "AKIAWRONGWRONGWR"}):
        with pytest.raises(errors.PermissionDenied):
            next(follow(s3.uri("wrong"), {}, patience=0, options=s3.options(**wrong)))


def test_wrong_keys_are_an_error(redis: RedisServer) -> None:
    publish(Place(redis.url("wrong"), {}), range(1, 2))
    with pytest.raises(errors.PermissionDenied):
        next(follow(redis.url("wrong"), {}, options={"redis_password": "wrong"}))


def test_signed_versions_on_a_server(place: Place, tmp_path: Path) -> None:
    signer = Signer(tmp_path)
    target = tmp_path / "copy.tensors"
    options = place.options | signer.options
    if place.uri.startswith("redis:"):
        with pytest.raises(errors.InvalidArgument, match="is in Redis, which keeps tensors only"):
            Publisher(place.uri, sign=signer.private)
        return
    with Publisher(
        place.uri, sign=signer.private, whole_every=2, grace=0, options=place.options
    ) as publisher:
        for step in range(1, 9):
            publisher.publish(state_of(step), step=step)
            found = follow(place.uri, target, patience=0, options=options)
            assert [each.step for each in found] == [step]
    assert tensorizer_ops.load(target, verify="all")["w"].equal(state_of(8)["w"])
    there = tensorizer_ops._versions.listing.Place(place.uri, place.options)
    listing = there.understood(there.read() or b"")
    assert listing.versions[0].number > 2
    for number in (1, 2):
        for kind in ("", ".delta"):
            assert not there.folder.has(f"{number:08d}-{publisher._id}{kind}.tensors.sig")
    (name,) = listing.versions[-1].files()
    there.folder.remove(name + ".sig")
    with pytest.raises(errors.Crypto, match="it is not signed"):
        list(follow(place.uri, {}, patience=0, options=options))
