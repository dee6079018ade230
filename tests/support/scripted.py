"""A web server whose responses a test writes itself, byte by byte if necessary."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[["Asked"], None]


@dataclass
class Request:
    command: str
    path: str
    headers: Message


class Asked(BaseHTTPRequestHandler):
    """A request, and methods to respond to it."""

    protocol_version = "HTTP/1.1"
    server: ScriptedServer

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(60)

    def _answer(self) -> None:
        self.server.asked.append(Request(self.command, self.path, self.headers))
        # The client may have closed the connection.
        try:
            self.server.answer(self)
        except OSError:
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def say(self, status: str, body: bytes = b"", **headers: str) -> None:
        """Sends a complete response. `None_Match` is the header None-Match. Omits empty ones."""
        fields = {"Content-Length": str(len(body))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"HTTP/1.1 {status}", *(f"{k}: {v}" for k, v in fields.items() if v)]
        self.wfile.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        if self.command != "HEAD":
            self.wfile.write(body)

    def say_range(self, content: bytes, **headers: str) -> None:
        """Responds with the requested range of a file."""
        begin, last = (int(n) for n in self.headers["range"].removeprefix("bytes=").split("-"))
        body = content[begin : last + 1]
        said = f"bytes {begin}-{begin + len(body) - 1}/{len(content)}"
        self.say("206 Partial Content", body, Content_Range=said, **headers)

    def never_end(self, piece: bytes, pause: float = 0) -> None:
        """Sends `piece` repeatedly until the client closes the connection. Stops after 256 MiB, or
        after 20 s with a pause, and sets `drained`: the client should have closed it before."""
        self.close_connection = True
        for _ in range(256 * (1 << 20) // len(piece) if pause == 0 else int(20 / pause)):
            self.wfile.write(piece)
            time.sleep(pause)
        self.server.drained = True


def replaced_after_opening(old: bytes, new: bytes, openings: int = 1) -> Answer:
    """Give the old file for so many openings, and then the new one."""
    opened = 0

    def answer(asked: Asked) -> None:
        nonlocal opened
        opened += asked.headers.get("Range", "").startswith("bytes=0-")
        number = 1 if opened <= openings else 2
        asked.say_range((old, new)[number - 1], ETag=f'"{number}"')

    return answer


class ScriptedServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.answer = answer
        self.asked: list[Request] = []
        self.drained = False  # a client has read all of `never_end`

    def url(self, path: str = "m.tensors") -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"


@contextmanager
def scripted(answer: Answer) -> Iterator[ScriptedServer]:
    with ScriptedServer(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
