"""A web server that returns faulty responses on request."""

from __future__ import annotations

import random
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ETAG = '"one"'

Fault = Callable[["Request", random.Random], Iterator[bytes]]


class Request:
    """A range request for the file, and the correct response to it."""

    def __init__(self, content: bytes, begin: int, end: int) -> None:
        self.total = len(content)
        self.begin, self.end = begin, min(end, len(content))
        self.body = content[self.begin : self.end]

    def head(self, status: str = "206 Partial Content", **changed: str) -> bytes:
        fields = {
            "Content-Length": str(len(self.body)),
            "Content-Range": f"bytes {self.begin}-{self.end - 1}/{self.total}",
            "ETag": ETAG,
        } | {name.replace("_", "-"): value for name, value in changed.items()}
        lines = [f"HTTP/1.1 {status}", *(f"{k}: {v}" for k, v in fields.items() if v)]
        return "\r\n".join(lines).encode() + b"\r\n\r\n"


def right(request: Request, dice: random.Random) -> Iterator[bytes]:
    yield request.head() + request.body


def cut(request: Request, dice: random.Random) -> Iterator[bytes]:
    yield request.head() + request.body[: dice.randrange(len(request.body) + 1)]
    yield b""


def cut_head(request: Request, dice: random.Random) -> Iterator[bytes]:
    head = request.head()
    yield head[: dice.randrange(len(head) - 1)]
    yield b""


def reset(request: Request, dice: random.Random) -> Iterator[bytes]:
    yield b""


def stall(request: Request, dice: random.Random) -> Iterator[bytes]:
    yield request.head() + request.body[: dice.randrange(len(request.body) + 1)]
    threading.Event().wait(0.5)
    yield b""


def trickle(request: Request, dice: random.Random) -> Iterator[bytes]:
    yield request.head()
    step = max(len(request.body) // 20, 1)
    for at in range(0, len(request.body), step):
        yield request.body[at : at + step]
        threading.Event().wait(0.005)


def busy(request: Request, dice: random.Random) -> Iterator[bytes]:
    status = dice.choice(["503 Busy", "429 Too Many", "500 Oh", "502 Bad", "504 Late", "408 Slow"])
    yield request.head(status, Content_Range="", Content_Length="4", Retry_After="0") + b"busy"


def repeat(request: Request, dice: random.Random) -> Iterator[bytes]:
    """Returns more bytes than requested, with a matching Content-Length."""
    body = request.body + request.body[:100]
    yield request.head(Content_Length=str(len(body))) + body


def flip(request: Request, dice: random.Random) -> Iterator[bytes]:
    body = bytearray(request.body)
    if body:
        body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
    yield request.head() + bytes(body)


def another_range(request: Request, dice: random.Random) -> Iterator[bytes]:
    at = request.begin + dice.choice([-1, 1, 1000])
    said = f"bytes {at}-{at + len(request.body) - 1}/{request.total}"
    yield request.head(Content_Range=said) + request.body


def another_begin(request: Request, dice: random.Random) -> Iterator[bytes]:
    said = f"bytes {request.begin + 1}-{request.end - 1}/{request.total}"
    yield request.head(Content_Range=said, Content_Length="") + request.body[1:]
    yield b""


def another_size(request: Request, dice: random.Random) -> Iterator[bytes]:
    said = f"bytes {request.begin}-{request.end - 1}/{request.total + dice.choice([-1, 1])}"
    yield request.head(Content_Range=said) + request.body


def another_file(request: Request, dice: random.Random) -> Iterator[bytes]:
    yield request.head(ETag='"two"') + request.body


def no_range(request: Request, dice: random.Random) -> Iterator[bytes]:
    yield request.head("200 OK", Content_Range="") + request.body


def nonsense(request: Request, dice: random.Random) -> Iterator[bytes]:
    said = dice.choice(["bytes */*", "bytes 5-1/3", "bytes 0-18446744073709551615/7", "x", "bytes"])
    yield request.head(Content_Range=said) + request.body


def garbage(request: Request, dice: random.Random) -> Iterator[bytes]:
    yield dice.randbytes(300)
    yield b""


FAULTS: list[Fault] = [
    *(cut, cut_head, reset, stall, trickle, busy, repeat, flip),
    *(another_range, another_begin, another_size, another_file, no_range, nonsense, garbage),
]
# The faults after which a load must still succeed.
HARMLESS: list[Fault] = [cut, cut_head, reset, stall, trickle, busy, garbage]


class FaultyServer:
    """Serves one file. Each request gets the next fault, or a right response if none is left."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._dice = random.Random(0)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/m.tensors"
        self._closed = False
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def meet(self, faults: list[Fault], seed: int) -> None:
        with self._lock:
            self._faults, self._dice = list(faults), random.Random(seed)

    def close(self) -> None:
        self._closed = True
        with socket.create_connection(self._listener.getsockname()):
            pass
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self._closed:
                connection.close()
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        with connection:
            try:
                while self._answer(connection):
                    pass
            except OSError:
                pass  # the client closed the connection

    def _answer(self, connection: socket.socket) -> bool:
        head = b""
        while b"\r\n\r\n" not in head:
            received = connection.recv(65536)
            if not received:
                return False
            head += received
        found = re.search(rb"range: bytes=(\d+)-(\d+)", head, re.IGNORECASE)
        assert found is not None, head
        request = Request(self._content, int(found[1]), int(found[2]) + 1)
        # Requests beyond offset 0 must be conditional on the file's ETag (If-Match).
        assert request.begin == 0 or b'if-match: "' in head.lower(), head
        with self._lock:
            fault = self._faults.pop(0) if self._faults else right
            dice = random.Random(self._dice.random())
        for part in fault(request, dice):
            if not part:
                return False
            connection.sendall(part)
        return True


@contextmanager
def faulty_server(content: bytes) -> Iterator[FaultyServer]:
    server = FaultyServer(content)
    try:
        yield server
    finally:
        server.close()
