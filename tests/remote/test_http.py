"""Files on real web servers (nginx)."""

from __future__ import annotations

import gc
import os
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.waiting import wait_until
from local_servers.web import PASSWORD, Web, free_port, nginx
from support.process import fork, wait
from support.relay import Relay, relay
from support.samples import assert_same, sample, zoo

ops = torch.ops.tensorizer

LARGE = {f"t{i}": sample(torch.float32, (300, 1000 + i), i) for i in range(12)}  # 14 MB


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with nginx(tmp_path_factory.mktemp("web")) as server:
        ops.save(str(server.root / "zoo.tensors"), zoo())
        ops.save(str(server.root / "large.tensors"), LARGE)
        ops.save(str(server.root / "a b+c%d é.tensors"), {"x": torch.ones(3)})
        (server.root / "empty").write_bytes(b"")
        (server.root / "nonsense").write_bytes(b"<html>" * 100)
        # An nginx ETag has the mtime in seconds, so it is unique only once that second is over.
        for file in server.root.iterdir():
            os.utime(file, (1_600_000_000, 1_600_000_000))
        yield server


@pytest.fixture
def large(web: Web) -> Callable[..., dict[str, torch.Tensor]]:
    def load(folder: str = "", **how: object) -> dict[str, torch.Tensor]:
        loaded: dict[str, torch.Tensor] = ops.load(web.url(f"{folder}large.tensors"), **how)
        return loaded

    return load


@pytest.mark.parametrize("verify", ["none", "crc32", "all"])
@pytest.mark.parametrize("folder", ["", "no-ranges/", "no-etag/", "moved/", "gzip/"])
def test_every_kind_of_server(web: Web, folder: str, verify: str) -> None:
    assert_same(ops.load(web.url(folder + "zoo.tensors"), verify=verify), zoo())
    options = {"chunk_size": "300000"}
    loaded = ops.load(web.url(folder + "large.tensors"), verify=verify, options=options)
    assert_same(loaded, LARGE)


def test_in_two_rounds(web: Web) -> None:
    web.requests()
    options = {"chunk_size": str(1 << 20), "connections": "4"}
    assert_same(ops.load(web.url("large.tensors"), options=options), LARGE)
    requests = web.requests()
    assert all(" 206 " in line and '"GET ' in line for line in requests)
    assert len(requests) == 1 + 2 * len(LARGE), "each tensor is a piece of 1 MiB and a rest"
    assert_same(ops.load(web.url("zoo.tensors")), zoo())
    assert len(web.requests()) == 1


def test_a_part_of_a_file_is_a_part_of_its_bytes(web: Web) -> None:
    reader = torch.classes.tensorizer.Reader(web.url("large.tensors"), None)
    assert reader.names() == list(LARGE)
    web.requests()
    loaded = reader.load(["t7"], None, None, "none", False, 0)
    assert_same(loaded, {"t7": LARGE["t7"]})
    sent = sum(int(line.split('"')[2].split()[1]) for line in web.requests())
    assert LARGE["t7"].nbytes <= sent < LARGE["t7"].nbytes + 10_000


def settled(between: Relay) -> int:
    """Returns what the client has sent, once the relay, which may lag behind, has all of it."""
    wait_until(lambda: between.unread() == 0)
    return between.sent


@pytest.mark.parametrize("http2", ["false", "true"])
def test_a_fork_leaves_the_download_of_its_parent(web: Web, http2: str) -> None:
    """Destroying it in the child must send nothing over its TLS connection."""
    options = {"ca_file": web.ca, "http2": http2}
    with relay(web.tls_port) as between:
        url = f"https://localhost:{between.port}/no-ranges/large.tensors"
        reader = torch.classes.tensorizer.Reader(url, options)
        reader.names()

        def drop() -> None:
            nonlocal reader
            del reader
            gc.collect()

        before = settled(between)
        assert wait(fork(drop)) == 0
        assert settled(between) == before
        assert_same(reader.load(None, None, None, "all", False, 0), LARGE)
        del reader


def test_names_that_have_to_be_escaped(web: Web) -> None:
    for name in ("a b+c%25d é.tensors", "a%20b+c%25d%20%C3%A9.tensors"):
        assert ops.load(web.url(name))["x"].tolist() == [1, 1, 1]


def test_scripted_and_compiled(web: Web) -> None:
    @torch.jit.script
    def load(url: str) -> torch.Tensor:
        return torch.ops.tensorizer.load(url)["float32"]

    assert_same({"x": load(web.url("zoo.tensors"))}, {"x": zoo()["float32"]})


ERRORS = [
    ("missing.tensors", FileNotFoundError, "status 404"),
    ("forbidden/zoo.tensors", PermissionError, "status 403"),
    ("private/zoo.tensors", PermissionError, "status 401"),
    ("empty", ValueError, "is empty"),
    ("nonsense", ValueError, "is not a .tensors"),
    ("round/zoo.tensors", ConnectionError, "redirects"),
    ("busy/zoo.tensors", ConnectionError, "status 503, after 2 more tries"),
]


@pytest.mark.parametrize(("path", "kind", "text"), ERRORS, ids=[path for path, *_ in ERRORS])
def test_answers_that_are_errors(web: Web, path: str, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as error:
        ops.load(web.url(path), options={"retries": "2"})
    assert path in str(error.value)


def test_servers_that_are_not_there() -> None:
    options = {"retries": "1", "connect_timeout": "1"}
    with pytest.raises(ConnectionError, match="after 1 more try"):
        ops.load(f"http://127.0.0.1:{free_port()}/x", options=options)
    # Without a network, looking up a name may take long.
    with pytest.raises((ConnectionError, TimeoutError), match=r"(?i)resolv"):
        ops.load("http://no-such-host.invalid/x", options=options)
    with pytest.raises(tensorizer_ops.errors.InvalidArgument):
        ops.load("http://")


def test_passwords_and_tokens(web: Web) -> None:
    url = web.url("private/zoo.tensors")
    secret = PASSWORD.replace(" ", "%20")
    assert_same(ops.load(url.replace("//", f"//me:{secret}@")), zoo())
    for wrong in (url.replace("//", "//me:se%20same@"), web.url("token/zoo.tensors?sig=se%20same")):
        with pytest.raises(PermissionError) as error:
            ops.load(wrong, options={"header.X-Secret": "sesame"})
        assert "sesame" not in str(error.value) and "same" not in str(error.value)
    token = {"header.Authorization": "Bearer a-token"}
    assert_same(ops.load(web.url("token/zoo.tensors"), options=token), zoo())


def test_passwords_in_netrc(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    netrc = f'machine 127.0.0.1\nlogin me\npassword "{PASSWORD}"\n'
    (tmp_path / ".netrc").write_text(netrc)
    assert_same(ops.load(web.url("private/zoo.tensors")), zoo())


def test_proxies_of_the_environment(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy receives whole URLs. Here nginx is the proxy, and serves their paths itself."""
    monkeypatch.setenv("http_proxy", web.url("").rstrip("/"))
    monkeypatch.delenv("no_proxy", raising=False)
    assert_same(ops.load("http://elsewhere.example/large.tensors"), LARGE)
    monkeypatch.setenv("no_proxy", "elsewhere.example")
    with pytest.raises((ConnectionError, TimeoutError)):
        options = {"connect_timeout": "1", "retries": "0"}
        ops.load("http://elsewhere.example/large.tensors", options=options)


def test_secrets_that_are_named(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = web.url("token/zoo.tensors")
    monkeypatch.setenv("A_TOKEN", "Bearer a-token")
    (tmp_path / "token").write_text("Bearer a-token\nand more\n")
    for named in ("env:A_TOKEN", f"file:{tmp_path}/token"):
        options = {"header.Authorization": named}
        assert_same(ops.load(url, options=options), zoo())
        reader = pickle.loads(pickle.dumps(torch.classes.tensorizer.Reader(url, options)))
        assert reader.names() == list(zoo())
    tensorizer_ops.set_secret("a token", "Bearer a-token")
    assert_same(ops.load(url, options={"header.Authorization": "named:a token"}), zoo())
    tensorizer_ops.set_secret("a token", "Bearer\r\nX-Forged: yes")
    for named, kind in (
        ("env:NO_TOKEN", ValueError),
        ("file:/no/token", FileNotFoundError),
        ("named:no token", ValueError),
        ("named:a token", ValueError),
    ):
        with pytest.raises(kind):
            ops.load(url, options={"header.Authorization": named})
    tensorizer_ops.set_secret("a token", None)


def test_nothing_keeps_a_secret(web: Web) -> None:
    url = web.url("zoo.tensors")
    secret = {"header.X-Secret": "sesame"}
    argument = "pass it as an argument"
    for place, options, advice in (
        (url, secret, "name it"),
        (url + "?sig=sesame", None, argument),
        (url + "?x", {}, argument),
    ):
        reader = torch.classes.tensorizer.Reader(place, options)
        assert reader.names() == list(zoo())
        with pytest.raises(ValueError, match=f"a pickled Reader would keep: {advice}") as error:
            pickle.dumps(reader)
        assert "sesame" not in str(error.value)
        with pytest.raises(Exception, match=f"a traced program would keep: {advice}") as traced:
            torch.compile(
                lambda place=place, options=options: ops.load(place, options=options)["bool"],
                backend="eager",
                fullgraph=True,
            )()
        assert "sesame" not in str(traced.value).partition("from user code")[0]


@pytest.mark.parametrize(
    "option", ["signature", "signed_folder", "s3_endpoint", "az_endpoint", "hf_endpoint"]
)
@pytest.mark.parametrize("uri", ["https://me:sesame@host/m.sig", "https://host/m.sig?sig=sesame"])
def test_nothing_keeps_a_secret_in_the_uri_of_an_option(option: str, uri: str) -> None:
    """It is opened later, or not at all."""
    options = {option: uri}
    with pytest.raises(ValueError, match=f"of option '{option}' .*Reader would keep") as error:
        pickle.dumps(tensorizer_ops.Reader("https://host/m.tensors", options=options))
    assert "sesame" not in str(error.value)


def test_tls(web: Web) -> None:
    url = web.tls_url("large.tensors")
    with pytest.raises(ConnectionError, match="certificate"):
        ops.load(url)
    assert_same(ops.load(url, options={"ca_file": web.ca}), LARGE)
    assert_same(ops.load(url, options={"insecure": "true"}), LARGE)
    assert any("HTTP/2" in line for line in web.requests())
    assert_same(ops.load(url, options={"ca_file": web.ca, "http2": "false"}), LARGE)
    assert "HTTP/1.1" in web.requests()[-1]
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1"):
        ops.load(url.replace("localhost", "127.0.0.1"), options={"ca_file": web.ca})
    with pytest.raises(ValueError):
        ops.load(url, options={"ca_file": "/nowhere.pem"})
    members = web.tls_url("members/zoo.tensors")
    with pytest.raises(PermissionError):
        ops.load(members, options={"ca_file": web.ca})
    certificate = {
        "ca_file": web.ca,
        "client_cert": str(web.folder / "client.pem"),
        "client_key": str(web.folder / "client.key"),
    }
    assert_same(ops.load(members, options=certificate), zoo())


@pytest.mark.parametrize("connections", [1, 2])
def test_connections_are_a_limit(web: Web, tmp_path: Path, connections: int) -> None:
    """However many threads compute."""
    tensors = {f"x{i}": torch.full((1 << 18,), float(i)) for i in range(16)}
    tensorizer_ops.save(web.root / "many.tensors", tensors)
    options = {"connections": str(connections), "chunk_size": "65536"}
    with tensorizer_ops.Reader(web.url("many.tensors"), options=options) as reader:
        assert_same(reader.load(verify="all", threads=8), tensors)
        assert reader.stats()["connections"] == connections
    copy = tmp_path / "copy.tensors"
    tensorizer_ops.convert(web.url("many.tensors"), copy, source_options=options, threads=8)
    assert_same(tensorizer_ops.load(copy), tensors)


def test_options_are_checked(web: Web) -> None:
    for name, value in (
        ("connections", "0"),
        ("chunk_size", "10"),
        ("retries", "-1"),
        ("stall_timeout", "soon"),
        ("insecure", "yes"),
        ("header.X", "a\r\nb: c"),
        ("header.", "x"),
        ("header.a b", "x"),
    ):
        with pytest.raises(tensorizer_ops.errors.InvalidArgument):
            ops.load(web.url("zoo.tensors"), options={name: value})


def test_a_slow_server_is_not_a_stalled_one(web: Web) -> None:
    start = time.monotonic()
    options = {"stall_timeout": "1", "connections": "4"}
    assert_same(ops.load(web.url("slow/large.tensors"), options=options), LARGE)
    assert time.monotonic() - start > 2


def test_who_speaks_no_tls_is_not_asked_again(web: Web) -> None:
    url = web.url("zoo.tensors").replace("http:", "https:")
    with pytest.raises(ConnectionError) as error:
        ops.load(url)
    assert "more tries" not in str(error.value)


@pytest.mark.parametrize(
    "proxy", ["foo://me:sesame@127.0.0.1:1", "http://me:sesame@127.0.0.1:99999999"]
)
def test_a_proxy_that_cannot_be_used_keeps_its_password(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises((ConnectionError, ValueError), match="proxy") as error:
        ops.load("http://example.invalid/x", options={"retries": "0"})
    assert "sesame" not in str(error.value)


def test_a_password_that_is_read_as_a_path_is_not_shown() -> None:
    with pytest.raises(ConnectionError) as error:
        ops.load("http://u:1/PW@host/", options={"retries": "0"})
    assert "PW" not in str(error.value)
    assert "'http://...@host/'" in str(error.value)


def test_a_file_that_is_replaced_is_no_mixture(web: Web) -> None:
    place = web.root / "replaced.tensors"
    ops.save(str(place), LARGE)
    reader = torch.classes.tensorizer.Reader(web.url("replaced.tensors"), None)
    reader.names()
    ops.save(str(place), {name: tensor + 1 for name, tensor in LARGE.items()})
    os.utime(place, (0, 0))  # an nginx ETag consists of the mtime in seconds and the size
    with pytest.raises(ConnectionError, match="has changed while it was loaded"):
        reader.load(None, None, None, "none", False, 0)


def test_where_a_redirect_led_to_is_asked_at_once(web: Web) -> None:
    reader = torch.classes.tensorizer.Reader(web.url("moved/large.tensors"), None)
    reader.names()
    web.requests()
    assert_same(reader.load(None, None, None, "none", False, 0), LARGE)
    requests = web.requests()
    assert requests and not any("/moved/" in line for line in requests)
    # The target stops answering, so the redirect is followed again: it may lead elsewhere now.
    (web.root / "large.tensors").rename(web.root / "elsewhere.tensors")
    try:
        with pytest.raises(FileNotFoundError):
            reader.load(None, None, None, "none", False, 0)
        assert any("/moved/" in line for line in web.requests())
    finally:
        (web.root / "elsewhere.tensors").rename(web.root / "large.tensors")
    assert_same(reader.load(None, None, None, "none", False, 0), LARGE)


def test_a_load_says_where_its_time_went(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    options = {"ca_file": web.ca, "connections": "3"}
    reader = torch.classes.tensorizer.Reader(web.tls_url("large.tensors"), options)
    with caplog.at_level("INFO", logger="tensorizer_ops"):
        reader.load(None, None, None, "all", False, 0)
    (record,) = caplog.records
    assert "13.8 MiB" in record.message and web.tls_url("large.tensors") in record.message
    stats = reader.stats()
    assert stats["loads"] == 1 and stats["tensors"] == len(LARGE)
    size = (web.root / "large.tensors").stat().st_size
    assert stats["received"] >= size - 8 and 2 <= stats["requests"] < 40
    assert 1 <= stats["connections"] <= 4 and stats["retries"] == 0
    for where in ("seconds", "verify", "connect", "tls", "first_byte", "transfer"):
        assert stats[where] > 0, where
    reader.close()
    assert reader.stats() == stats
