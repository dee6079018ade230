"""Redirects: where they lead, and which headers are sent along."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from local_servers.web import Web, nginx
from support.samples import assert_same, zoo
from support.scripted import Asked, ScriptedServer, scripted
from tensorizer_ops.stream_io import CAInfo, open_stream

ops = torch.ops.tensorizer


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with nginx(tmp_path_factory.mktemp("web")) as server:
        (server.root / "put").mkdir()
        ops.save(str(server.root / "zoo.tensors"), zoo())
        yield server


def test_tls_is_left_where_that_is_meant(web: Web) -> None:
    url = web.tls_url("in-plain/zoo.tensors")
    web.requests()
    with pytest.raises(ConnectionError, match="insecure_redirects") as error:
        ops.load(url, options={"ca_file": web.ca})
    assert f"http://127.0.0.1:{web.port}" in str(error.value)
    with pytest.raises(ConnectionError, match="insecure_redirects"):
        ops.save(web.tls_url("in-plain/put/x"), zoo(), options={"ca_file": web.ca})
    with pytest.raises(ConnectionError, match="insecure_redirects"):
        open_stream(url, certificate_handling=CAInfo(cacert=web.ca))
    assert all("/in-plain/" in line for line in web.requests()), "nobody was asked in plain text"
    allowed = {"ca_file": web.ca, "insecure_redirects": "true"}
    assert_same(ops.load(url, options=allowed), zoo())


def test_plain_text_may_lead_to_tls(web: Web) -> None:
    options = {"ca_file": web.ca}
    assert_same(ops.load(web.url("to-tls/zoo.tensors"), options=options), zoo())


@pytest.mark.parametrize("to", ["ftp://host/x", "file:///etc/passwd", "http://", "http://a b/"])
def test_elsewhere_is_a_web_server(to: str) -> None:
    def answer(asked: Asked) -> None:
        asked.say("302 Found", Location=to)

    with scripted(answer) as server:
        with pytest.raises(ConnectionError, match="not an http:// or https:// URL"):
            ops.load(server.url())
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("query", "is_followed"),
    [
        ("&".join(f"p{i}" for i in range(100)), True),
        ("&".join(f"p{i}" for i in range(101)), False),
        ("p" * 16000, True),
        ("p" * 16384, False),
    ],
    ids=["100 parameters", "101 parameters", "almost 16 KiB", "more than 16 KiB"],
)
def test_targets_are_bounded(content: bytes, query: str, is_followed: bool) -> None:
    """All their parameters are kept out of messages, and sent with every later request."""

    def answer(asked: Asked) -> None:
        if "?" in asked.path:
            asked.say_range(content, ETag='"1"')
        else:
            asked.say("302 Found", Location=f"/x?{query}")

    with scripted(answer) as server:
        if is_followed:
            assert ops.load(server.url())["x"].tolist() == list(range(1 << 20))
            return
        with pytest.raises(ConnectionError, match="more than 16384 bytes or 100 parameters"):
            ops.load(server.url())
        assert len(server.asked) == 1


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    ops.save(str(tmp_path / "m"), {"x": torch.arange(1 << 20)})
    return (tmp_path / "m").read_bytes()


HEADERS = {"header.Authorization": "Bearer t", "header.Cookie": "c=1", "header.X-Key": "key"}


@contextmanager
def leading(content: bytes, in_whole: bool) -> Iterator[tuple[ScriptedServer, ScriptedServer]]:
    """Yields a server that has the file at /here, and another one that it redirects to.

    `in_whole`: whether a redirect to /here is an absolute URL.
    """

    def serve(asked: Asked) -> None:
        asked.say_range(content, ETag='"1"')

    def lead(asked: Asked) -> None:
        if asked.path == "/here":
            serve(asked)
        elif "here" in asked.path:
            asked.say("302 Found", Location=home.url("here") if in_whole else "/here")
        else:
            asked.say("302 Found", Location=other.url())

    with scripted(serve) as other, scripted(lead) as home:
        yield home, other


@pytest.mark.parametrize("everywhere", [False, True])
def test_headers_are_for_the_first_origin(content: bytes, everywhere: bool) -> None:
    options = HEADERS | {"header_everywhere": "true" if everywhere else "false"}
    with leading(content, in_whole=False) as (home, other):
        ops.load(home.url(), options=options)
        ops.load(home.url("to-here"), options=options)
        for asked in home.asked:
            sent = [asked.headers[name] for name in ("Authorization", "Cookie", "X-Key")]
            assert sent == ["Bearer t", "c=1", "key"], asked.path
        assert len(other.asked) > 1
        for asked in other.asked:
            sent = [asked.headers[name] for name in ("Authorization", "Cookie", "X-Key")]
            assert sent == [None, None, "key" if everywhere else None]
            assert asked.headers["Range"]


def test_a_login_of_netrc_is_for_the_first_origin(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """~/.netrc names hosts without ports, and another port may be that of another user."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password pass")
    with leading(content, in_whole=True) as (home, other):
        for path in ("to-here", "x"):
            ops.load(home.url(path))
        assert {asked.headers["authorization"] for asked in home.asked} == {"Basic bWU6cGFzcw=="}
        assert {asked.headers["authorization"] for asked in other.asked} == {None}


def test_a_password_is_for_the_first_origin(content: bytes) -> None:
    """It is sent again to that origin, even if a redirect has an absolute URL."""
    with leading(content, in_whole=True) as (home, other):
        for path in ("to-here", "x"):
            ops.load(home.url(path).replace("//", "//me:pass@"))
        assert {asked.headers["authorization"] for asked in home.asked} == {"Basic bWU6cGFzcw=="}
        assert {asked.path for asked in home.asked} == {"/to-here", "/here", "/x"}
        assert {asked.headers["authorization"] for asked in other.asked} == {None}
