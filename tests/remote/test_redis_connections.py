"""Redis over TLS and Unix domain sockets."""

from __future__ import annotations

import gc
import pickle
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.redis_server import RedisServer, TlsRedis, redis_server, tls_redis_server
from local_servers.waiting import wait_until
from local_servers.web import free_port, make_certificates, openssl
from support.process import fork, wait
from support.relay import relay
from support.samples import assert_same, sample
from support.signer import Signer
from tensorizer_ops import stream_io, trust
from tensorizer_ops.stream_io import CAInfo, RedisStreamFile

ops = torch.ops.tensorizer
Reader, Writer = torch.classes.tensorizer.Reader, torch.classes.tensorizer.Writer
Error = tensorizer_ops.errors.Error

# Each tensor takes several pieces in a load, and its last piece is small.
FILE = {f"t{i}": sample(torch.float32, (600, 1000 + i), i) for i in range(6)}
FILE |= {"turned": FILE["t1"].t(), "empty": torch.empty(0), "small": torch.ones(3)}

PASSWORD = "se@me/?: %"
ESCAPED = "se%40me%2F%3F%3A%20%25"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    new = ("req", "-newkey", "rsa:2048", "-nodes", "-x509", "-subj", "/CN=other")
    openssl(folder, *new, "-keyout", "other.key", "-out", "other.pem")
    return folder


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[TlsRedis]:
    with tls_redis_server(tmp_path_factory.mktemp("tls"), certificates) as server:
        yield server


def test_saves_and_loads_over_tls(tls: TlsRedis) -> None:
    ops.save(tls.url("m"), FILE, options=tls.options())
    for options in (tls.options(), tls.options(connections="1", memory_ceiling=str(1 << 20))):
        assert_same(ops.load(tls.url("m"), verify="all", options=options), FILE)
    assert_same(ops.load(tls.server.url("m"), verify="all"), FILE)
    reader = Reader(tls.url("m"), tls.options())
    reader.load(None, None, None, "none", False, 0)
    stats = reader.stats()
    assert stats["tls"] > 0 and stats["connections"] >= 2
    assert stats["received"] >= sum(tensor.nbytes for tensor in FILE.values())


def test_a_writer_over_tls(tls: TlsRedis) -> None:
    writer = Writer(tls.url("w"), tls.options())
    for name, tensor in FILE.items():
        writer.add(name, tensor, 2, 0)
    writer.close()
    assert_same(ops.load(tls.url("w"), verify="all", options=tls.options()), FILE)


def test_many_pieces_of_a_large_tensor_over_tls(tls: TlsRedis) -> None:
    """Much more than the buffers of a socket, so that sending has to wait."""
    large = {"x": sample(torch.int64, (3_000_000,), 7)}
    ops.save(tls.url("large"), large, options=tls.options())
    assert_same(ops.load(tls.url("large"), verify="all", options=tls.options()), large)


def test_a_tls_connection_that_breaks(tls: TlsRedis) -> None:
    ops.save(tls.url("b"), FILE, options=tls.options())
    with relay(tls.port) as between:
        url = tls.url("b", port=between.port)
        for passed in (10, 3000, 300_000, 3_000_000):
            between.after(passed, between.end_all)
            assert_same(ops.load(url, verify="all", options=tls.options()), FILE)
        between.after(2_000_000, between.end_all)
        with pytest.raises(ConnectionError):
            ops.save(tls.url("c", port=between.port), FILE, options=tls.options())
    wait_until(lambda: not any(name.startswith("c.saving") for name in tls.server.sizes()))


def refused(url: str, options: dict[str, str], match: str, kind: type[Exception]) -> None:
    for work in (ops.load, lambda url, **how: ops.save(url, {"x": torch.ones(3)}, **how)):
        with pytest.raises(kind, match=match):
            work(url, options=options)


def test_certificates_of_servers(tls: TlsRedis, certificates: Path) -> None:
    ops.save(tls.url("m"), FILE, options=tls.options())
    other = str(certificates / "other.pem")
    refused(tls.url("m"), {}, "certificate", ConnectionError)
    refused(tls.url("m"), {"ca_file": other}, "certificate", ConnectionError)
    refused(tls.url("m"), {"ca_file": "/nowhere"}, "nowhere", ValueError)
    refused(tls.url("m", host="127.0.0.1"), tls.options(), "127.0.0.1", ConnectionError)
    for url in (tls.url("m"), tls.url("m", host="127.0.0.1")):
        for options in ({"insecure": "true"}, {"insecure": "true", "ca_file": other}):
            assert_same(ops.load(url, options=options), FILE)


def test_a_folder_of_authorities(tls: TlsRedis, certificates: Path, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes((certificates / "ca.pem").read_bytes())
    openssl(tmp_path, "rehash", ".")
    ops.save(tls.url("m"), FILE, options={"ca_path": str(tmp_path)})


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_certificates_of_clients(tmp_path: Path, certificates: Path, version: str) -> None:
    with tls_redis_server(
        tmp_path, certificates, "--tls-protocols", version, clients="yes"
    ) as strict:
        options = strict.options(client=True)
        ops.save(strict.url("m"), FILE, options=options)
        assert_same(ops.load(strict.url("m"), options=options), FILE)
        wrong = options | {
            "client_cert": str(certificates / "other.pem"),
            "client_key": str(certificates / "other.key"),
        }
        for given in (strict.options(), wrong):
            refused(strict.url("m"), given, "alert|client certificate", ConnectionError)
        nowhere = options | {"client_cert": "/nowhere"}
        refused(strict.url("m"), nowhere, "nowhere|certificate", ValueError)


def test_passwords_over_tls(tmp_path: Path, certificates: Path) -> None:
    with tls_redis_server(tmp_path, certificates, password=PASSWORD) as server:
        url = server.url("m", login=f":{ESCAPED}@")
        ops.save(url, FILE, options=server.options())
        assert_same(ops.load(url, options=server.options()), FILE)
        with pytest.raises(PermissionError) as error:
            ops.load(server.url("m", login=":sesame@"), options=server.options())
        assert "sesame" not in str(error.value)


def test_servers_that_speak_the_other_way(tls: TlsRedis) -> None:
    options = tls.options(connect_timeout="0.5", stall_timeout="0.5", retries="0")
    with pytest.raises(OSError, match="redis://"):
        ops.load(tls.url("m", port=tls.server.port), options=options)
    with pytest.raises(Error):
        ops.load(f"redis://localhost:{tls.port}/m", options=options)


def test_a_fork_leaves_the_connections_of_its_parent(tls: TlsRedis) -> None:
    """It must not close them either: TLS would send a close_notify alert over them."""
    ops.save(tls.url("m"), FILE, options=tls.options())
    reader = Reader(tls.url("m"), tls.options(connections="1"))
    reader.load(None, None, None, "all", False, 0)
    before = reader.stats()["connections"]

    def use() -> None:
        assert_same(reader.load(None, None, None, "all", False, 0), FILE)

    def drop() -> None:
        nonlocal reader
        del reader
        gc.collect()

    for child in (use, drop):
        assert wait(fork(child)) == 0
        assert_same(reader.load(None, None, None, "all", False, 0), FILE)
    assert reader.stats()["connections"] == before and reader.stats()["retries"] == 0


@pytest.mark.parametrize("kind", ["load", "add", "handshake"])
def test_a_cancel_is_quick(tls: TlsRedis, kind: str) -> None:
    patient = tls.options(stall_timeout="600", connect_timeout="600")
    ops.save(tls.url("m"), FILE, options=patient)
    reader, writer = Reader(tls.url("m"), patient), Writer(tls.url("c"), patient)
    if kind == "load":
        reader.names()
        work, cancel = (lambda: reader.load(None, None, None, "none", False, 0)), reader.cancel
    elif kind == "add":
        writer.add("small", torch.ones(3), 2, 0)
        work = lambda: writer.add("x", torch.zeros(1 << 24), 2, 0)  # noqa: E731
        cancel = writer.cancel
    else:
        work, cancel = reader.names, reader.cancel
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except Error as error:
            errors.append(error)

    with tls.server.stopped():
        thread = threading.Thread(target=run)
        thread.start()
        while thread.is_alive():  # the work may not have begun
            cancel()
            thread.join(0.1)
    assert [type(error) for error in errors] == [tensorizer_ops.errors.Cancelled]


def test_proxies_are_not_for_redis(tls: TlsRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    ops.save(tls.url("m"), {"x": torch.ones(3)}, options=tls.options())
    assert ops.load(tls.server.url("m"))["x"].tolist() == [1, 1, 1]


def test_streams_over_tls(tls: TlsRedis, certificates: Path) -> None:
    ops.save(tls.url("m"), FILE, options=tls.options())
    trusted = CAInfo(cacert=str(certificates / "ca.pem"))
    with stream_io.open_stream(tls.server.url("m")) as plain:
        expected = plain.read()
    with stream_io.open_stream(tls.url("m"), certificate_handling=trusted) as stream:
        assert isinstance(stream, RedisStreamFile)
        assert stream.read() == expected
    with RedisStreamFile(tls.url("m"), certificate_handling=trusted) as stream:
        assert_same(tensorizer_ops.TensorDeserializer(stream, device="cpu"), FILE)
    with pytest.raises(ConnectionError, match="certificate"):
        stream_io.open_stream(tls.url("m"))


# Unix domain sockets.


@pytest.fixture
def local(tmp_path: Path) -> Iterator[tuple[RedisServer, Path]]:
    path = tmp_path / "a redis%.sock"
    with redis_server(tmp_path, "--unixsocket", str(path), password=PASSWORD) as server:
        yield server, path


def unix(path: Path, parameters: str, login: str = f":{ESCAPED}@") -> str:
    return f"unix://{login}{str(path).replace('%', '%25').replace(' ', '%20')}?{parameters}"


def test_saves_and_loads_over_a_socket(local: tuple[RedisServer, Path]) -> None:
    server, path = local
    ops.save(unix(path, "prefix=a/m:%20n%26"), FILE)
    assert "a/m: n&:header:0" in server.sizes()
    assert_same(ops.load(unix(path, "prefix=a/m:%20n%26"), verify="all"), FILE)
    ops.save(unix(path, "db=3&prefix=m"), {"x": torch.ones(3)})
    assert "m:header:0" in server.sizes(3)
    given = {"redis_password": PASSWORD, "db": "3"}
    for url in (unix(path, "prefix=m", ""), unix(path, "prefix=m&db=5", "")):
        assert ops.load(url, options=given)["x"].tolist() == [1, 1, 1]
    with pytest.raises(FileNotFoundError, match="in database 0"):
        ops.load(unix(path, "prefix=m&db=3"), options={"db": "0"})
    login = f"default:{ESCAPED}@"
    assert ops.names(unix(path, "prefix=m&db=3", login)) == ["x"]
    with stream_io.open_stream(unix(path, "prefix=m&db=3")) as stream:
        assert stream.read(5) == b"|TZR|"
        assert stream.tell() == 5
    with tensorizer_ops.TensorDeserializer(unix(path, "prefix=m&db=3"), device="cpu") as tensors:
        assert tensors["x"].tolist() == [1, 1, 1]
    reader = Reader(unix(path, "prefix=m&db=3", ""), {"redis_password": "env:X"})
    assert isinstance(pickle.dumps(reader), bytes)


def test_a_model_that_is_signed_over_a_socket(
    local: tuple[RedisServer, Path], tmp_path: Path, signer: Signer
) -> None:
    uri, bundle = unix(local[1], "prefix=signed"), tmp_path / "m.sig"
    tensorizer_ops.save(uri, {"w": torch.ones(3)})
    tensorizer_ops.sign(uri, key=signer.private, signature=bundle)
    options = signer.options | {"signature": str(bundle)}
    assert tensorizer_ops.load(uri, options=options)["w"].tolist() == [1, 1, 1]
    trust.verify(uri, policy=signer.options["trust"], signature=bundle)


def test_what_sockets_refuse(local: tuple[RedisServer, Path], tmp_path: Path) -> None:
    _, path = local
    for wrong in ("", ":sesame@", "sesame:sesame@"):
        with pytest.raises(PermissionError) as error:
            ops.load(unix(path, "prefix=m", wrong))
        assert "sesame" not in str(error.value) and "prefix=m" in str(error.value)
    with pytest.raises(ValueError, match="would keep: pass it as an argument"):
        pickle.dumps(Reader(unix(path, "prefix=m"), None))
    missing = unix(tmp_path / "missing", "prefix=m", "")
    with pytest.raises(ConnectionError, match=r"missing\?prefix=m': No such file"):
        ops.load(missing, options={"retries": "0"})
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        with pytest.raises(ConnectionError, match="refused"):
            ops.load(unix(tmp_path / "silent", "prefix=m", ""), options={"retries": "0"})
        silent.listen(1)
        with pytest.raises(TimeoutError, match="stalls"):
            options = {"retries": "0", "stall_timeout": "0.3"}
            ops.load(unix(tmp_path / "silent", "prefix=m", ""), options=options)
