"""What an error says of a request that was not signed, because no key was found."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensorizer_ops
from support.s3_streams import forget_settings
from support.scripted import Asked, scripted
from tensorizer_ops import TensorDeserializer
from tensorizer_ops.stream_io import open_stream


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_settings(tmp_path / "home", monkeypatch)


def refuse(asked: Asked) -> None:
    asked.say("403 Forbidden", b"<Error><Code>AccessDenied</Code></Error>")


def test_an_unsigned_request_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    says = "403: 'AccessDenied': the request was not signed, because there are no credentials"
    with scripted(refuse) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url(""))
        with pytest.raises(PermissionError, match=says):
            open_stream("s3://bucket/m")
        with pytest.raises(PermissionError, match=says):
            TensorDeserializer("s3://bucket/m")
        unsigned = {"s3_anonymous": "without_keys"}
        with pytest.raises(PermissionError, match=says):
            tensorizer_ops.load("s3://bucket/m", options=unsigned)
        assert not any("authorization" in asked.headers for asked in server.asked)


def test_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(refuse) as server:
        place = {"s3_endpoint": server.url(""), "force_http": "true"}
        signed = {"s3_access_key_id": "a", "s3_secret_access_key": "b"}
        for options in ({"s3_anonymous": "true"}, signed, signed | {"s3_signature_version": "s3"}):
            with pytest.raises(PermissionError, match=r"403: 'AccessDenied'$"):
                tensorizer_ops.load("s3://bucket/m", options=place | options)
