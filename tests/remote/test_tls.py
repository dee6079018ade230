"""Old versions of TLS, and servers that speak TLS where the client does not, or the reverse."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.redis_server import TlsRedis, tls_redis_server
from local_servers.waiting import LAST_RESORT
from local_servers.web import Web, make_certificates, nginx
from support.scripted import Asked, scripted

WEIGHTS = {"x": torch.ones(3)}
# Lets this process speak every version of TLS, as some systems are set up.
PERMISSIVE = """
openssl_conf = all
[all]
ssl_conf = ssl
[ssl]
system_default = defaults
[defaults]
MinProtocol = TLSv1
CipherString = DEFAULT@SECLEVEL=0
"""
PROGRAM = """
import sys, tensorizer_ops
print(tensorizer_ops.names(sys.argv[1], options={"ca_file": sys.argv[2], "retries": "0"}))
"""


def loads_with_any_tls(uri: str, ca: str, folder: Path) -> str:
    """Return what a process prints that loads with OpenSSL's own limits lowered."""
    (folder / "openssl.cnf").write_text(PERMISSIVE)
    environment = os.environ | {"OPENSSL_CONF": str(folder / "openssl.cnf")}
    command = [sys.executable, "-c", PROGRAM, uri, ca]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LAST_RESORT
    )
    return (done.stdout or done.stderr).strip().splitlines()[-1]


@pytest.mark.parametrize("version", ["TLSv1.1", "TLSv1.2"])
def test_old_versions_on_the_web(tmp_path: Path, version: str) -> None:
    with nginx(tmp_path, tls=version) as web:
        tensorizer_ops.save(web.root / "m.tensors", WEIGHTS)
        said = loads_with_any_tls(web.tls_url("m.tensors"), web.ca, tmp_path)
    assert said == "['x']" if version == "TLSv1.2" else "no TLS 1.2 or later" in said


@pytest.mark.parametrize("version", ["TLSv1.1", "TLSv1.2"])
def test_old_versions_of_redis(tmp_path: Path, version: str) -> None:
    make_certificates(tmp_path)
    settings = ("--tls-protocols", version, "--tls-ciphers", "DEFAULT@SECLEVEL=0")
    with tls_redis_server(tmp_path, tmp_path, *settings) as redis:
        tensorizer_ops.save(redis.server.url("m"), WEIGHTS)
        said = loads_with_any_tls(redis.url("m"), str(tmp_path / "ca.pem"), tmp_path)
    assert said == "['x']" if version == "TLSv1.2" else "no TLS 1.2 or later" in said


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory, web: Web) -> Iterator[TlsRedis]:
    with tls_redis_server(tmp_path_factory.mktemp("redis"), web.folder) as server:
        yield server


@contextmanager
def tls_alone(web: Web) -> Iterator[int]:
    """A server that closes a connection whose first bytes are not TLS, without a page."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(web.folder / "server.pem", web.folder / "server.key")
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while not over.is_set():
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    context.wrap_socket(connection, server_side=True)

        thread = threading.Thread(target=serve)
        thread.start()
        address = listener.getsockname()
        try:
            yield address[1]
        finally:
            over.set()
            socket.create_connection(address).close()
            thread.join()


def said_of(uri: str, **options: str) -> str:
    with pytest.raises(OSError) as error:
        tensorizer_ops.load(uri, options={"retries": "0"} | options)
    return str(error.value)


FOR_WEB = re.escape(": https:// is for servers that speak TLS, and http:// for others")
FOR_REDIS = re.escape(": rediss:// is for servers that speak TLS, and redis:// for others")


def test_plain_web_servers(web: Web, redis: TlsRedis) -> None:
    keys = {"s3_access_key_id": "a", "s3_secret_access_key": "b"}
    place = f"localhost:{web.port}"
    for said in (
        said_of(f"https://{place}/m"),
        said_of("s3://bucket/m", s3_endpoint=f"https://{place}", **keys),
    ):
        assert re.search(f"'the server does not speak TLS'{FOR_WEB}$", said)
    # Redis waits for the rest of the handshake.
    waits = said_of(f"https://localhost:{redis.server.port}/m", connect_timeout="0.5")
    assert re.search(f"'SSL connection timeout'{FOR_WEB}$", waits)


def test_plain_http_where_tls_is_spoken(web: Web, redis: TlsRedis) -> None:
    assert re.search(f"status 400{FOR_WEB}$", said_of(f"http://localhost:{web.tls_port}/m"))
    with tls_alone(web) as port:
        assert re.search(f"{FOR_WEB}$", said_of(f"http://127.0.0.1:{port}/m"))
    # A response of one request is no reason to doubt the scheme.
    assert "TLS" not in said_of(web.url("nowhere"))


def test_plain_http_is_not_doubted_after_an_answer(tmp_path: Path) -> None:
    tensorizer_ops.save(tmp_path / "m", {"x": torch.zeros(1 << 20)})
    content = (tmp_path / "m").read_bytes()

    def answer(asked: Asked) -> None:
        if asked.headers["range"].startswith("bytes=0-"):
            asked.say_range(content)
        else:
            asked.close_connection = True

    with scripted(answer) as server:
        assert "TLS" not in said_of(server.url())
        assert len(server.asked) > 1


def test_redis_with_and_without_tls(redis: TlsRedis, web: Web) -> None:
    assert re.search(f"{FOR_REDIS}$", said_of(f"redis://localhost:{redis.port}/m"))
    ca = {"ca_file": web.ca}
    # Redis waits for the rest of the handshake.
    waits = said_of(redis.url("m", port=redis.server.port), connect_timeout="0.5", **ca)
    assert re.search(f"{FOR_REDIS}$", waits)
    assert re.search(
        f"'the server does not speak TLS'{FOR_REDIS}$", said_of(redis.url("m", port=web.port), **ca)
    )
