"""Starts real Redis servers on a free port of this machine, without persistence."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from local_servers.waiting import LAST_RESORT
from local_servers.web import free_port

PROGRAM = "/usr/bin/redis-server"


class RedisServer:
    def __init__(self, port: int, process: subprocess.Popen[bytes], password: str = "") -> None:
        self.port = port
        self.process = process
        self.password = password

    def url(self, prefix: str, login: str = "") -> str:
        return f"redis://{login}127.0.0.1:{self.port}/{prefix}"

    def client(self, database: int = 0) -> redis.Redis:
        return redis.Redis(port=self.port, db=database, password=self.password or None)

    def sizes(self, database: int = 0) -> dict[str, int]:
        """Return the size of each value, by key, sorted."""
        with self.client(database) as client:
            names = sorted(client.scan_iter(count=1000))
            pipeline = client.pipeline(transaction=False)
            for name in names:
                pipeline.strlen(name)
            return dict(zip((name.decode() for name in names), pipeline.execute(), strict=True))

    def values(self, database: int = 0) -> dict[str, bytes]:
        with self.client(database) as client:
            return {name: client.get(name) for name in self.sizes(database)}

    def clear(self) -> None:
        with self.client() as client:
            client.flushall()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the process: it accepts connections and data but does not respond."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextmanager
def redis_server(folder: Path, *settings: str, password: str = "") -> Iterator[RedisServer]:
    """Start a server; `settings` are further arguments of its command line."""
    if password:
        settings += ("--requirepass", password)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "redis.log"
    for attempt in range(5):
        port = free_port()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [PROGRAM, "--port", str(port), "--bind", "127.0.0.1", "--save", "", *settings],
                cwd=folder,
                stdout=output,
            )
        if answers(port, process):
            break
        # Another process has taken the port meanwhile.
        process.kill()
        process.wait()
        assert attempt < 4, log.read_text()
    try:
        yield RedisServer(port, process, password)
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class TlsRedis:
    """A server that also listens for TLS."""

    server: RedisServer
    port: int
    certificates: Path

    def url(self, prefix: str, host: str = "localhost", port: int = 0, login: str = "") -> str:
        return f"rediss://{login}{host}:{port or self.port}/{prefix}"

    def options(self, *, client: bool = False, **more: str) -> dict[str, str]:
        given = {"ca_file": str(self.certificates / "ca.pem")}
        if client:
            given["client_cert"] = str(self.certificates / "client.pem")
            given["client_key"] = str(self.certificates / "client.key")
        return given | more


@contextmanager
def tls_redis_server(
    folder: Path, certificates: Path, *settings: str, clients: str = "no", password: str = ""
) -> Iterator[TlsRedis]:
    """Start a server with certificates of make_certificates()."""
    port = free_port()
    settings += ("--tls-port", str(port), "--tls-auth-clients", clients)
    for name, file in (("cert", "server.pem"), ("key", "server.key"), ("ca-cert", "ca.pem")):
        settings += (f"--tls-{name}-file", str(certificates / file))
    with redis_server(folder, *settings, password=password) as server:
        yield TlsRedis(server, port, certificates)


def answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + LAST_RESORT
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with redis.Redis(port=port) as client:
                client.ping()
            return True
        except redis.AuthenticationError:
            return True
        except redis.ConnectionError:
            time.sleep(0.02)
    return False
