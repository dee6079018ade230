"""Web servers that send nothing, and those that close connections."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import tensorizer_ops
from support.process import ticking

ops = torch.ops.tensorizer


class Silent:
    """A server that accepts connections and sends nothing."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._held: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"

    def accept(self) -> socket.socket:
        self._held.append(self._listener.accept()[0])
        return self._held[-1]

    def accepted(self) -> int:
        """Returns the number of connections since the last call."""
        count = 0
        with socket.create_connection(self._listener.getsockname()) as last:
            while self.accept().getpeername() != last.getsockname():
                count += 1
        return count

    def close(self) -> None:
        for connection in self._held:
            connection.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        listener.settimeout(100)
        server = Silent(listener)
        yield server
        server.close()


def test_silence_is_a_stall(silent: Silent) -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="nothing or almost nothing"):
        ops.load(silent.url, options={"stall_timeout": "0.5", "retries": "1"})
    assert time.monotonic() - start > 1
    assert silent.accepted() == 2
    with pytest.raises(TimeoutError):
        ops.load(silent.url, options={"stall_timeout": "0.5", "timeout": "1", "retries": "100"})
    assert silent.accepted() <= 2
    # `timeout` ends a request before a longer `stall_timeout` does.
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="longer than its time limit"):
        ops.load(silent.url, options={"timeout": "1", "stall_timeout": "200"})
    assert time.monotonic() - start < 100


@contextmanager
def hanging_up(reset: bool) -> Iterator[tuple[str, list[int]]]:
    """Yields a server that closes each connection after its first bytes, and a list of those."""
    connections: list[int] = []

    def serve() -> None:
        while not closed.is_set():
            client, _ = listener.accept()
            with client:
                if not closed.is_set():
                    connections.append(len(client.recv(1 if reset else 65536)))
                if reset:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    closed = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}/x", connections
        closed.set()
        socket.create_connection(listener.getsockname()).close()
        thread.join()


@pytest.mark.parametrize("reset", [True, False])
def test_a_handshake_that_breaks_off_is_tried_again(reset: bool) -> None:
    with hanging_up(reset) as (url, connections):
        with pytest.raises(ConnectionError, match="after 2 more tries"):
            ops.load(url, options={"retries": "2"})
        assert len(connections) == 3


def test_a_reader_can_be_cancelled(silent: Silent) -> None:
    reader = torch.classes.tensorizer.Reader(silent.url, {"stall_timeout": "200"})
    cancelled = 0

    def cancel() -> None:
        nonlocal cancelled
        silent.accept().recv(1)  # a request has arrived, and gets no response
        cancelled = ticks()
        reader.cancel()

    with ticking() as ticks:
        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(tensorizer_ops.errors.Cancelled):
            reader.names()
        assert ticks() - cancelled <= 10
        thread.join()
