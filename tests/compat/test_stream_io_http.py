"""Streams from web servers: the number of requests, which servers are trusted, and refusals."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorizer.stream_io as classic

from local_servers.waiting import wait_until
from local_servers.web import PASSWORD, Web
from support.process import fork_python
from support.streams import BYTES, SMALL, stream_server
from tensorizer_ops import stream_io
from tensorizer_ops.stream_io import CAInfo, CURLStreamFile, RedisStreamFile, open_stream


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with stream_server(tmp_path_factory.mktemp("web")) as server:
        yield server


def sizes_of(web: Web, total: int) -> list[int]:
    """Returns the size of each response, once they add up to `total`. The log may be late."""
    sizes: list[int] = []

    def are_all() -> bool:
        sizes.extend(int(line.split('" ')[1].split()[1]) for line in web.requests())
        return sum(sizes) >= total

    wait_until(are_all)
    return sizes


def test_small_reads_make_few_requests(web: Web) -> None:
    web.requests()
    with open_stream(web.url("large")) as stream:
        while stream.read(5000):
            pass
    sizes = sizes_of(web, len(BYTES))
    assert len(sizes) <= 30 and sum(sizes) == len(BYTES)
    # A seek far ahead requests little.
    with open_stream(web.url("large")) as stream:
        stream.seek(20 << 20)
        assert stream.read(100) == BYTES[20 << 20 :][:100]
    first, *rest = sizes_of(web, (1 << 20) + 100)
    assert first == 1 << 20 and sum(rest) <= 64 << 10


def test_a_small_end_asks_for_nothing_behind_it(web: Web) -> None:
    web.requests()
    with open_stream(web.url("large"), begin=2 << 20, end=(2 << 20) + 500) as stream:
        assert stream.read() == BYTES[2 << 20 :][:500]
    assert sizes_of(web, 500) == [500]


def test_memory_is_bounded(web: Web) -> None:
    code = """
import resource, sys
from tensorizer_ops.stream_io import open_stream
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
with open_stream(sys.argv[1]) as stream:
    stream.read(100)
    before = peak()
    while stream.read(100_000):
        pass
assert peak() - before < 40 << 20, peak() - before
"""
    with (web.root / "huge").open("wb") as file:
        file.truncate(300 << 20)
    fork_python(code, web.url("huge"))


def test_certificates(web: Web) -> None:
    url = web.tls_url("small")
    for handling in (CAInfo(cacert=web.ca), CAInfo(allow_untrusted=True)):
        with open_stream(url, certificate_handling=handling) as stream:
            assert stream.read() == SMALL
    with pytest.raises(ConnectionError):
        open_stream(url)
    folder = web.folder / "authorities"
    folder.mkdir()
    name = os.popen(f"openssl x509 -hash -noout -in {web.ca}").read().strip()
    (folder / f"{name}.0").write_text(Path(web.ca).read_text())
    with open_stream(url, certificate_handling=CAInfo(capath=str(folder))) as stream:
        assert stream.read() == SMALL
    with pytest.raises(TypeError, match="CAInfo"):
        open_stream(url, certificate_handling="no")


def test_what_certificates_may_be(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("")
    for given in (
        {},
        {"cacert": str(file), "allow_untrusted": True},
        {"cacert": str(tmp_path)},
        {"capath": str(file)},
    ):
        for module in (classic, stream_io):
            with pytest.raises(ValueError):
                module.CAInfo(**given)
    for given in ({"cacert": str(file)}, {"capath": str(tmp_path)}, {"allow_untrusted": True}):
        assert CAInfo(**given).curl_flags == classic.CAInfo(**given).curl_flags
        assert hash(CAInfo(**given)) == hash(CAInfo(**given))


def test_headers_and_logins(web: Web) -> None:
    headers = {"Authorization": "Bearer a-token"}
    with CURLStreamFile(web.url("token/small"), headers=headers) as stream:
        assert stream.read() == SMALL
        assert "a-token" not in repr(stream) + repr(stream._engine_place())
    login = web.url("private/small").replace("://", f"://me:{PASSWORD.replace(' ', '%20')}@")
    with open_stream(login) as stream:
        assert stream.read() == SMALL
        assert "open" not in repr(stream) + stream.name
    with pytest.raises(PermissionError) as caught:
        open_stream(login.replace("sesame", "bread"))
    assert "bread" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("nothing", FileNotFoundError),
        ("forbidden/x", PermissionError),
        ("private/small", PermissionError),
    ],
)
def test_refusals_are_os_errors(web: Web, path: str, kind: type[OSError]) -> None:
    with pytest.raises(OSError):
        classic.open_stream(web.url(path))
    with pytest.raises(kind):
        open_stream(web.url(path))


def test_hosts_and_uris_that_are_none(web: Web) -> None:
    with pytest.raises(ConnectionError):
        open_stream("http://127.0.0.1:1/x")
    with pytest.raises(ValueError, match="not an http"):
        CURLStreamFile("file:///etc/passwd")
    with pytest.raises(ValueError, match="not a redis"):
        RedisStreamFile(web.url("small"))


def test_errors_in_the_middle_say_more(web: Web) -> None:
    (web.root / "changing").write_bytes(BYTES)
    with open_stream(web.url("changing")) as stream:
        stream.read(100)
        stream.register_error_context("it was a strange day")
        (web.root / "changing").write_bytes(b"shorter")
        stream.seek(9 << 20)
        with pytest.raises(OSError, match=r"has changed(.|\n)*it was a strange day"):
            stream.read(100)
