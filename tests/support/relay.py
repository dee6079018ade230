"""A TCP proxy between a client and a server that damages connections on request."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# SO_LINGER with a timeout of 0: close discards unsent data and sends a reset.
RESET = struct.pack("ii", 1, 0)


class Relay:
    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.passed = 0  # bytes in both directions together
        self.sent = 0  # bytes to the server
        self._harm_at: int | None = None
        self._harm: Callable[[], None] = self.end_all
        self._flip_at: int | None = None
        self._cuts = 0
        self._cut_at = b""
        self._meanwhile: Callable[[], None] = self.end_all
        self._strand_at: bytes | None = None
        self._stranded: list[tuple[Pair, bytes]] = []
        self._swallow_at: bytes | None = None
        self._swallow_last = False
        self._refuses = False
        self._lock = threading.Lock()
        self._pairs: list[Pair] = []
        self._closed = False
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def after(self, passed: int, harm: Callable[[], None]) -> None:
        """Calls `harm` and ends the connection after `passed` more bytes, once."""
        with self._lock:
            self._harm_at, self._harm = self.passed + passed, harm

    def flip(self, passed: int) -> None:
        """Flips a bit of a byte from the server after `passed` more bytes."""
        with self._lock:
            self._flip_at = self.passed + passed

    def cut(self, number: int, mark: bytes, meanwhile: Callable[[], None]) -> None:
        """Calls `meanwhile` between the `number`th `mark` to the server and the next byte."""
        with self._lock:
            self._cuts, self._cut_at, self._meanwhile = number, mark, meanwhile

    def strand(self, mark: bytes) -> None:
        """When `mark` is sent to the server, ends the client's side of the connection, once, and
        keeps the data that the server has not received yet."""
        with self._lock:
            self._strand_at = mark

    def swallow(self, mark: bytes, last: bool = False) -> None:
        """When `mark` is sent to the server, ends the connection at the response to it, once.
        If that is the `last` one, no connection is accepted from then on."""
        with self._lock:
            self._swallow_at, self._swallow_last = mark, last

    def swallows(self, data: bytes) -> bool:
        with self._lock:
            found = self._swallow_at is not None and self._swallow_at in data
            if found:
                self._swallow_at = None
                self._refuses = self._swallow_last
            return found

    def strands(self, pair: Pair, data: bytes) -> bool:
        with self._lock:
            if self._strand_at is None or self._strand_at not in data:
                return False
            self._strand_at = None
            self._stranded.append((pair, data))
            return True

    def deliver(self) -> None:
        """Delivers the kept data, and returns when the server has processed it."""
        with self._lock:
            stranded, self._stranded = self._stranded, []
        assert stranded
        for pair, data in stranded:
            pair.deliver(data)

    def unread(self) -> int:
        """Returns the number of bytes that clients have sent and that are not in `sent` yet."""
        return sum(pair.unread() for pair in self._pairs)

    def refuse(self, refuses: bool) -> None:
        """Accepts no connection from now on, or all again."""
        with self._lock:
            self._refuses = refuses

    def end_all(self) -> None:
        for pair in list(self._pairs):
            pair.end()

    def close(self) -> None:
        self._closed = True
        with socket.create_connection(("127.0.0.1", self.port)):
            self._thread.join()
        self.end_all()
        for pair in self._pairs:
            pair.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._closed:
                client.close()
                return
            self.connections += 1
            if self._refuses:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            for pair in [pair for pair in self._pairs if pair.is_over()]:
                pair.join()
                self._pairs.remove(pair)
            pair = Pair(self, client, server)
            self._pairs.append(pair)  # before a byte passes, for unread()
            pair.start()

    def until_cut(self, data: bytes) -> int:
        """Returns how much of `data` may be sent before `meanwhile` runs: up to the cut, or all."""
        with self._lock:
            at = 0
            while self._cuts and (found := data.find(self._cut_at, at)) >= 0:
                at = found + len(self._cut_at)
                self._cuts -= 1
                if self._cuts == 0:
                    return at
            return len(data)

    def wait(self) -> None:
        self._meanwhile()

    def let_pass(self, pair: Pair, data: bytes, answer: bool) -> bytes:
        """Returns the part of `data` that may pass, possibly with a flipped bit."""
        harm = None
        with self._lock:
            if self._harm_at is not None and self.passed + len(data) >= self._harm_at:
                data = data[: self._harm_at - self.passed]
                harm, self._harm_at = self._harm, None
            if answer and data and self._flip_at is not None and self.passed >= self._flip_at:
                data = bytes([data[0] ^ 1 << self._flip_at % 8]) + data[1:]
                self._flip_at = None
            self.passed += len(data)
            self.sent += 0 if answer else len(data)
        if harm:
            harm()
            pair.end()
        return data


class Pair:
    """A connection from a client, and the one to the server behind it."""

    def __init__(self, relay: Relay, client: socket.socket, server: socket.socket) -> None:
        self._relay = relay
        self._is_mute = False
        self._ends = [client, server]
        self._threads = [
            threading.Thread(target=self._copy, args=(client, server, False)),
            threading.Thread(target=self._copy, args=(server, client, True)),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RDWR)

    def is_over(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def unread(self) -> int:
        count = fcntl.ioctl(self._ends[0], termios.FIONREAD, bytes(4))
        return int.from_bytes(count, sys.byteorder)

    def deliver(self, data: bytes) -> None:
        """Sends `data` to the server after the client has disconnected."""
        with contextlib.suppress(OSError):
            self._ends[1].sendall(data)
            self._ends[1].shutdown(socket.SHUT_WR)
        self._threads[1].join()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()

    def _copy(self, source: socket.socket, target: socket.socket, answer: bool) -> None:
        with contextlib.suppress(OSError):
            # What comes from the client stays in its socket until it is counted, for unread().
            while data := source.recv(1 << 16, 0 if answer else socket.MSG_PEEK):
                if not answer and self._relay.strands(self, data):
                    source.shutdown(socket.SHUT_RDWR)
                    return
                if answer and self._is_mute:
                    self.end()
                    return
                self._is_mute = self._is_mute or (not answer and self._relay.swallows(data))
                end = len(data) if answer else self._relay.until_cut(data)
                target.sendall(self._relay.let_pass(self, data[:end], answer))
                if end < len(data):
                    self._relay.wait()
                    target.sendall(self._relay.let_pass(self, data[end:], answer))
                if not answer:
                    source.recv(len(data), socket.MSG_WAITALL)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@contextmanager
def relay(port: int) -> Iterator[Relay]:
    between = Relay(port)
    try:
        yield between
    finally:
        between.close()


@contextmanager
def away_after(server: Relay, passed: int) -> Iterator[None]:
    """The server cannot be reached after so many bytes."""

    def leave() -> None:
        server.refuse(True)
        server.end_all()

    server.after(passed, leave)
    try:
        yield
    finally:
        server.after(1 << 60, leave)
        server.refuse(False)


def reached_through(port: int, uri: str, options: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Return the URI, of Redis or S3, and the options of a client that gives up at once."""
    address = f"127.0.0.1:{port}"
    options = options | {"retries": "0", "connections": "1", "connect_timeout": "5"}
    if uri.startswith("s3:"):
        return uri, options | {"s3_endpoint": f"http://{address}"}
    return f"redis://{address}/{uri}", options
