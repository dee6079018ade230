"""A web server whose answers a test writes itself, byte by byte where it must be."""

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
    """A request, and the way to answer it."""

    protocol_version = "HTTP/1.1"
    server: ScriptedServer

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(60)

    def _answer(self) -> None:
        self.server.asked.append(Request(self.command, self.path, self.headers))
        # The other side may have had enough.
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
        """Answers in whole; `None_Match` is the header None-Match, and an empty one is left out."""
        fields = {"Content-Length": str(len(body))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"HTTP/1.1 {status}", *(f"{k}: {v}" for k, v in fields.items() if v)]
        self.wfile.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        if self.command != "HEAD":
            self.wfile.write(body)

    def say_range(self, content: bytes, **headers: str) -> None:
        """Answers with the part of a file that was asked for."""
        begin, last = (int(n) for n in self.headers["range"].removeprefix("bytes=").split("-"))
        body = content[begin : last + 1]
        said = f"bytes {begin}-{begin + len(body) - 1}/{len(content)}"
        self.say("206 Partial Content", body, Content_Range=said, **headers)

    def never_end(self, piece: bytes, pause: float = 0) -> None:
        """Sends it again and again until the other side hangs up, which it should before long: then
        there is an end after all."""
        self.close_connection = True
        for _ in range(256 * (1 << 20) // len(piece) if pause == 0 else int(20 / pause)):
            self.wfile.write(piece)
            time.sleep(pause)
        self.server.drained = True


class ScriptedServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.answer = answer
        self.asked: list[Request] = []
        self.drained = False  # somebody has read what never ends

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
