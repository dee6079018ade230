"""Streams that read from S3, and where they find keys. The server checks signatures."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import tensorizer.stream_io as classic

from local_servers.s3_server import KEY_ID, S3, SECRET
from local_servers.web import nginx
from support.recorder import Recorder, recorder
from support.s3_streams import BYTES, PLAIN, PLAIN_ID, forget_settings, keys, stored, stream_store
from tensorizer_ops import stream_io
from tensorizer_ops._compat.s3_access import Access, complete, read_s3cfg, to_options, with_scheme
from tensorizer_ops.stream_io import open_stream


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with stream_store(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_settings(tmp_path / "home", monkeypatch)


def write_s3cfg(home: Path, s3: S3, **settings: str) -> Path:
    path = home / ".s3cfg"
    lines = {
        "access_key": KEY_ID,
        "secret_key": SECRET,
        "host_base": f"127.0.0.1:{s3.port}",
        "use_https": "False",
    } | settings
    path.write_text("[default]\n" + "".join(f"{k} = {v}\n" for k, v in lines.items() if v))
    return path


@pytest.fixture
def recorded(s3: S3) -> Iterator[Recorder]:
    with recorder(s3.port) as between:
        yield between


def test_reads(s3: S3) -> None:
    with open_stream("s3://bucket/large", **keys(s3)) as stream:
        assert isinstance(stream, stream_io.CURLStreamFile)
        assert stream.read(100) == BYTES[:100]
        stream.seek(-50, io.SEEK_END)
        assert stream.read() == BYTES[-50:]
        stream.seek(0)
        assert stream.read() == BYTES
        assert stream.response_headers.get("Last-Modified")
    with open_stream("s3://bucket/a b+c%", begin=1, end=4, **keys(s3)) as stream:
        assert stream.read() == b"tra"


def test_downloads(s3: S3) -> None:
    endpoint = f"http://127.0.0.1:{s3.port}"
    for module in (classic, stream_io):
        with module.s3_download(
            "s3://bucket/large", KEY_ID, SECRET, endpoint, "us-east-1", "s3v4", begin=5, end=900
        ) as stream:
            assert stream.read(895) == BYTES[5:900]


def test_refusals_are_os_errors(s3: S3) -> None:
    with pytest.raises(FileNotFoundError):
        open_stream("s3://bucket/nothing", **keys(s3))
    with pytest.raises(PermissionError) as caught:
        open_stream("s3://bucket/large", **keys(s3, s3_secret_access_key="not the secret"))
    assert "not the secret" not in str(caught.value)
    for uri in ("s3://bucket", "s3://bucket/", "s3:///key"):
        with pytest.raises(ValueError):
            open_stream(uri, **keys(s3))


@pytest.mark.parametrize("slashes", ["/", "//", "///"])
def test_slashes_before_a_key_are_none_of_it(s3: S3, tmp_path: Path, slashes: str) -> None:
    """As in tensorizer, leading slashes are not part of a key. For the ops, they are."""
    with open_stream(f"s3://bucket{slashes}led", "wb", **keys(s3)) as stream:
        stream.write(slashes.encode())
    assert stored(s3, "led") == slashes.encode()
    for module in (stream_io, classic):
        with module.open_stream(f"s3://bucket{slashes}led", **keys(s3)) as stream:
            assert stream.read() == slashes.encode(), module
    (tmp_path / "file").write_bytes(b"sent")
    login = (KEY_ID, SECRET, f"http://127.0.0.1:{s3.port}")
    stream_io.s3_upload(str(tmp_path / "file"), f"s3://bucket{slashes}led", *login)
    assert stored(s3, "led") == b"sent"
    with stream_io.s3_download(f"s3://bucket{slashes}led", *login) as stream:
        assert stream.read() == b"sent"
    with pytest.raises(ValueError, match="BUCKET/KEY"):
        open_stream(f"s3://bucket{slashes}", **keys(s3))


@pytest.mark.parametrize("mode", ["rb+", "r", "w", "xb", "wt", ""])
def test_modes_that_are_none(mode: str) -> None:
    for module in (classic, stream_io):
        with pytest.raises(ValueError, match="mode"):
            module.open_stream("s3://bucket/large", mode)


def test_no_secret_shows(s3: S3) -> None:
    with open_stream("s3://bucket/large", **keys(s3)) as stream:
        place = stream._engine_place()
        assert place is not None and SECRET in place[1].values()
        assert SECRET not in repr(stream) + repr(place) + str(place) + stream.name
    with open_stream("s3://bucket/shown", "wb", **keys(s3)) as stream:
        place = stream._hand_over()
        assert place is not None and SECRET in place[1].values()
        assert SECRET not in repr(stream) + repr(place) + str(place) + stream.name


@pytest.mark.parametrize(
    "wrong",
    [
        *({"s3_access_key_id": 1}, {"s3_secret_access_key": [SECRET]}, {"s3_endpoint": 1}),
        *({"s3_region_name": b"here"}, {"end": 3.5}),
    ],
)
def test_arguments_of_wrong_types_show_no_secret(s3: S3, wrong: dict[str, Any]) -> None:
    arguments: dict[str, Any] = keys(s3) | wrong
    with pytest.raises(TypeError) as caught:
        open_stream("s3://bucket/large", **arguments)
    assert SECRET not in str(caught.value)
    if "end" not in wrong:
        assert str(caught.value).startswith(next(iter(wrong)))
        del arguments["force_http"]
        with pytest.raises(TypeError) as caught:
            stream_io.s3_upload(__file__, "s3://bucket/wrong", **arguments)
        assert SECRET not in str(caught.value)


# Credentials and endpoints.


@pytest.mark.parametrize("how", ["home", "named"])
def test_s3cmds_file(s3: S3, tmp_path: Path, how: str) -> None:
    path = write_s3cfg(tmp_path / "home", s3)
    more = {}
    if how == "named":
        path = path.rename(tmp_path / "settings")
        more = {"s3_config_path": path}
    with open_stream("s3://bucket/large", **more) as stream:
        assert stream.read(9) == BYTES[:9]


def test_s3cmds_file_comes_before_the_environment(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_s3cfg(tmp_path / "home", s3, access_key=PLAIN_ID, secret_key=PLAIN)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOTHEROTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for module in (classic, stream_io):
        with module.open_stream("s3://bucket/large") as stream:
            assert stream.read(9) == BYTES[:9]


def test_one_key_of_s3cmds_file(s3: S3, tmp_path: Path) -> None:
    write_s3cfg(tmp_path / "home", s3, access_key="AKIAOTHER")
    with open_stream("s3://bucket/large", s3_access_key_id=KEY_ID) as stream:
        assert stream.read(9) == BYTES[:9]


def test_the_token_of_s3cmds_file_goes_with_its_keys_only(s3: S3, tmp_path: Path) -> None:
    path = write_s3cfg(tmp_path / "home", s3, access_token="token")
    for key_id, token in ((None, "token"), (KEY_ID, None)):
        access = Access(key_id, None, None)
        options = complete(
            access,
            config_paths=(path,),
            must_exist=True,
            force_http=None,
            default_endpoint="localhost",
            enforce_scheme=with_scheme,
        )
        assert options.get("s3_session_token") == token


def test_both_keys_given_leave_the_file_alone(s3: S3, tmp_path: Path) -> None:
    write_s3cfg(tmp_path / "home", s3, access_key="AKIAOTHER", host_base="127.0.0.1:1")
    with open_stream("s3://bucket/large", **keys(s3)) as stream:
        assert stream.read(9) == BYTES[:9]


def test_s3cmds_file_that_is_none(s3: S3, tmp_path: Path) -> None:
    given = {"s3_endpoint": f"127.0.0.1:{s3.port}", "force_http": True}
    with pytest.raises(FileNotFoundError):
        open_stream("s3://bucket/large", s3_config_path=tmp_path / "nothing", **given)
    (tmp_path / "home/.s3cfg").write_text(f"secret_key = {SECRET}\n")
    with pytest.raises(ValueError, match="s3cfg") as caught:
        open_stream("s3://bucket/large", **given)
    assert SECRET not in str(caught.value)


def test_s3cmds_file_is_read_as_the_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "s3cfg"
    path.write_text('[default]\naccess_key = "an id"\nhost_base: "host"\nuse_https = False\n')
    found, token = read_s3cfg([tmp_path / "nothing", path])
    assert found == (str(path), "host", "an id", None, False)
    assert token == ""
    for content in (b"", b"[other]\naccess_key = an id\n", b"[default]\nsecret_key = sesame\xff\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"s3cfg.*section \[default\]") as caught:
            read_s3cfg([path])
        assert "sesame" not in repr(caught.value)


def test_the_environment(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    with open_stream("s3://bucket/large") as stream:
        assert stream.read(9) == BYTES[:9]
    with open_stream("s3://bucket/from-environment", "wb") as stream:
        stream.write(b"x")
    assert stored(s3, "from-environment") == b"x"


def test_without_tls_only_where_it_is_meant(s3: S3, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{s3.port}"
    for module in (classic, stream_io):
        with pytest.raises(ValueError):
            module.open_stream("s3://bucket/large", **keys(s3, s3_endpoint=url, force_http=None))
        with module.open_stream("s3://bucket/large", **keys(s3, s3_endpoint=url)) as stream:
            assert stream.read(9) == BYTES[:9]
    with_tls = url.replace("http", "https")
    with open_stream("s3://bucket/large", **keys(s3, s3_endpoint=with_tls)) as stream:
        assert stream.read(9) == BYTES[:9]
    for use_https, fits in (("False", True), ("True", False)):
        write_s3cfg(tmp_path / "home", s3, use_https=use_https)
        if fits:
            open_stream("s3://bucket/large").close()
        else:
            with pytest.raises(OSError):
                open_stream("s3://bucket/large")


@pytest.mark.parametrize("mode", ["rb", "wb"])
def test_the_default_endpoints(s3: S3, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    name = f"default_s3_{'read' if mode == 'rb' else 'write'}_endpoint"
    monkeypatch.setattr(stream_io, name, f"127.0.0.1:{s3.port}")
    given = keys(s3)
    del given["s3_endpoint"]
    with open_stream("s3://bucket/large", mode, **given) as stream:
        if mode == "wb":
            stream.write(BYTES)
        else:
            assert stream.read(9) == BYTES[:9]


def test_a_public_bucket(tmp_path: Path) -> None:
    """Without credentials, requests are not signed."""
    with nginx(tmp_path) as server:
        (server.root / "bucket").mkdir()
        (server.root / "bucket" / "open").write_bytes(b"for all")
        with recorder(server.port) as between:
            where = {"s3_endpoint": f"127.0.0.1:{between.port}", "force_http": True}
            for given in ({}, {"s3_access_key_id": "", "s3_secret_access_key": ""}):
                with open_stream("s3://bucket/open", **where, **given) as stream:
                    assert stream.read() == b"for all"
            assert all("authorization" not in r.headers and not r.query for r in between.take())


@pytest.mark.parametrize("key", ["large", "a b+c%"])
@pytest.mark.parametrize("token", ["", "a/token+of%some=kind"])
def test_urls_that_are_equal_all_day(s3: S3, recorded: Recorder, key: str, token: str) -> None:
    """The URLs equal botocore's byte for byte, so that caches recognise them."""
    endpoint = f"http://127.0.0.1:{recorded.port}"
    content = b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-0/1\r\nContent-Length: 1\r\n\r\nx"
    recorded.answers = lambda request: content
    if token:
        path = Path(os.environ["HOME"]) / ".s3cfg"
        path.write_text(
            f"[default]\naccess_key = {KEY_ID}\nsecret_key = {SECRET}\naccess_token = {token}\n"
        )
        given: dict[str, Any] = {}
    else:
        given = {"s3_access_key_id": KEY_ID, "s3_secret_access_key": SECRET}
    expected = {"AWSAccessKeyId", "Signature", "Expires"}
    with open_stream(
        f"s3://bucket/{key}",
        s3_endpoint=endpoint,
        force_http=True,
        s3_signature_version="s3",
        **given,
    ) as stream:
        assert stream.read() == b"x"
    (asked,) = recorded.take()
    assert "authorization" not in asked.headers
    if token:
        assert asked.query["x-amz-security-token"] == token
        assert set(asked.query) == expected | {"x-amz-security-token"}
        return
    url = classic._s3_download_url(
        f"s3://bucket/{key}", KEY_ID, SECRET, endpoint, "us-east-1", "s3"
    )
    query = dict(pair.split("=", 1) for pair in url.partition("?")[2].split("&"))
    assert list(query) == list(asked.query)
    assert int(query["Expires"]) == int(asked.query["Expires"])
    assert {name: unquote(value) for name, value in query.items()} == asked.query


def test_a_host_with_a_cache_signs_urls() -> None:
    def signature(endpoint: str | None, version: str | None = None) -> str:
        access = Access("id", "secret", endpoint, None, version)
        return to_options(access)["s3_signature_version"]

    assert signature("https://accel-object.ord1.coreweave.com") == "s3"
    assert signature("accel-object.ord1.coreweave.com:8080/x") == "s3"
    assert signature("https://object.ord1.coreweave.com/accel-object.") == "s3v4"
    assert signature("https://accel-object.ord1.coreweave.com", "s3v4") == "s3v4"
    assert signature(None, "v4") == "s3v4"
    with pytest.raises(ValueError, match="s3_signature_version"):
        signature(None, "v3")
