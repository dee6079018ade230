"""A proxy that records the requests between a client and a web server, and can break them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

# What a server answers to who has no right to a file.
DENIED = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"


@dataclass
class Recorded:
    """A request that passed through the proxy."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    size: int


@dataclass
class Recorder:
    """A proxy in front of a server, with hooks for each request. `breaks`: closes the connection.
    `answers`: responds in place of the server. `loses`: drops the server's response."""

    port: int
    requests: list[Recorded] = field(default_factory=list)
    breaks: Callable[[Recorded], bool] = lambda request: False
    answers: Callable[[Recorded], bytes | None] = lambda request: None
    loses: Callable[[Recorded], bool] = lambda request: False
    most: int | None = None  # bytes of a request body, after which the connection is closed

    def take(self) -> list[Recorded]:
        """Returns the requests since the last call."""
        taken, self.requests = self.requests, []
        return taken


def _read_head(client: socket.socket, held: bytes) -> tuple[bytes, bytes] | None:
    while b"\r\n\r\n" not in held:
        received = client.recv(65536)
        if not received:
            return None
        held += received
    head, _, rest = held.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", rest


def _parse(head: bytes) -> Recorded:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {}
    for line in lines:
        name, _, value = line.partition(": ")
        headers[name.lower()] = value
    url = urlsplit(target)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    return Recorded(method, url.path, query, headers, int(headers.get("content-length", "0")))


def _forward(
    recorder: Recorder, client: socket.socket, server: socket.socket, lost: threading.Event
) -> None:
    held = b""
    while (found := _read_head(client, held)) is not None:
        head, held = found
        request = _parse(head)
        recorder.requests.append(request)
        if recorder.breaks(request):
            return
        answer = recorder.answers(request)
        if recorder.loses(request):
            lost.set()
        if answer is None:
            server.sendall(head)
        left = request.size
        while left > 0:
            piece, held = (held[:left], held[left:]) if held else (client.recv(262144), b"")
            if not piece:
                return
            if answer is None:
                server.sendall(piece)
            left -= len(piece)
            if recorder.most is not None and request.size - left > recorder.most:
                return
        if answer is not None:
            client.sendall(answer)


def _back(server: socket.socket, client: socket.socket, lost: threading.Event) -> None:
    with suppress(OSError):
        while (piece := server.recv(262144)) and not lost.is_set():
            client.sendall(piece)
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


def _serve(recorder: Recorder, client: socket.socket, port: int) -> None:
    with (
        client,
        suppress(ConnectionRefusedError),
        socket.create_connection(("127.0.0.1", port)) as server,
    ):
        lost = threading.Event()
        back = threading.Thread(target=_back, args=(server, client, lost))
        back.start()
        with suppress(OSError):
            _forward(recorder, client, server, lost)
        for side in (server, client):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        back.join()


@contextmanager
def recorder(port: int) -> Iterator[Recorder]:
    """Starts a recorder in front of the server on `port`."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    recorder = Recorder(listener.getsockname()[1])
    threads: list[threading.Thread] = []

    def accept() -> None:
        while True:
            with suppress(OSError):
                client, _ = listener.accept()
                if closed.is_set():
                    client.close()
                    return
                threads.append(threading.Thread(target=_serve, args=(recorder, client, port)))
                threads[-1].start()

    closed = threading.Event()
    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield recorder
    finally:
        closed.set()
        socket.create_connection(("127.0.0.1", recorder.port)).close()
        thread.join()
        listener.close()
