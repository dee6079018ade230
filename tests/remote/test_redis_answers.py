"""Servers in the place of Redis that send nothing or nonsense, or that are not ready yet."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import tensorizer_ops
from local_servers.web import free_port

ops = torch.ops.tensorizer


Error = tensorizer_ops.errors.Error


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that gives the same answer to everything."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        threads: list[threading.Thread] = []

        def serve(connection: socket.socket) -> None:
            with connection:
                connection.settimeout(100)
                try:
                    while connection.recv(1 << 16):
                        connection.sendall(answer)
                except OSError:
                    pass

        def accept() -> None:
            while True:
                connection, _ = listener.accept()
                if over.is_set():
                    connection.close()
                    return
                threads.append(threading.Thread(target=serve, args=(connection,)))
                threads[-1].start()

        over = threading.Event()
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield f"redis://127.0.0.1:{listener.getsockname()[1]}/m"
        finally:
            over.set()
            with socket.create_connection(listener.getsockname()):
                accepting.join()
            for thread in threads:
                thread.join()


NO_REDIS = {
    "a web server": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "an empty line": b"\r\n",
    "no line": b"\n",
    "a length that is no number": b"$abc\r\n",
    "a length that no number holds": b"$99999999999999999999\r\n",
    "a length below nothing": b"$-7\r\n",
    "a length that no memory holds": b"$9000000000000000000\r\n",
    "a length that is not there": b"$1000000\r\nabc",
    "a list of too many": b"*1000000000\r\n" + b":1\r\n" * 100_000,
    "a list that ends early": b"*3\r\n:1\r\n",
    "lists in lists": b"*1\r\n" * 100_000,
    "a line without an end": b"+" + b"x" * 10_000_000,
    "a text that goes on": b"$2\r\nabcd\r\n",
    "always a number": b":7\r\n",
    "always well": b"+OK\r\n",
    "always nothing": b"$-1\r\n",
    "always a list": b"*2\r\n$1\r\n0\r\n*0\r\n",
    "always another page": b"*2\r\n$1\r\nx\r\n*0\r\n",
    "not a text": b"-ERR \xff\x00\x1b[31m\r\n",
    "types of a later protocol": b"%1\r\n+a\r\n:1\r\n",
}


@pytest.mark.parametrize("answer", NO_REDIS)
def test_servers_that_are_no_redis(answer: str) -> None:
    options = {"stall_timeout": "0.5", "retries": "0"}
    with answering(NO_REDIS[answer]) as place:
        for work in (ops.load, lambda url, **how: ops.save(url, {"x": torch.ones(3)}, **how)):
            with pytest.raises(Error) as error:
                work(place, options=options)
            assert isinstance(error.value, (ConnectionError, TimeoutError))
            assert str(error.value).isprintable()


def test_long_lines_in_a_list_count_as_the_memory_that_they_take() -> None:
    answer = b"*2200\r\n" + (b"+" + b"x" * 61440 + b"\r\n") * 2200
    with (
        answering(answer) as place,
        pytest.raises(ConnectionError, match=r"does not answer as Redis does: '\+?xxx"),
    ):
        ops.load(place, options={"stall_timeout": "5", "retries": "0"})


def test_a_server_that_is_not_ready_is_asked_again() -> None:
    with answering(b"-LOADING Redis is loading the dataset in memory\r\n") as place:
        start = time.monotonic()
        with pytest.raises(ConnectionError, match=r"LOADING.*after 2 more tries"):
            ops.load(place, options={"retries": "2"})
        assert time.monotonic() - start > 0.15


def test_servers_that_are_not_there() -> None:
    place = f"redis://127.0.0.1:{free_port()}/m"
    with pytest.raises(ConnectionError, match="refused, after 1 more try"):
        ops.load(place, options={"retries": "1"})
    with pytest.raises(ConnectionError, match="refused"):
        ops.save(place, {"x": torch.ones(3)})
    with pytest.raises(ConnectionError, match="host"):
        ops.load("redis://no-such-host.invalid/m", options={"retries": "0"})


def test_silence_ends_in_time() -> None:
    with answering(b"") as place:
        start = time.monotonic()
        with pytest.raises(TimeoutError, match="stalls"):
            ops.load(place, options={"stall_timeout": "0.5", "retries": "1"})
        with pytest.raises(TimeoutError, match="stalls"):
            ops.save(place, {"x": torch.ones(3)}, options={"stall_timeout": "0.5"})
        assert time.monotonic() - start > 1.4


def test_a_host_that_takes_no_connection() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        waiting = []
        for _ in range(8):  # connections that are never accepted
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(listener.getsockname())
        start = time.monotonic()
        with pytest.raises(TimeoutError, match="cannot connect"):
            ops.load(
                f"redis://127.0.0.1:{listener.getsockname()[1]}/m",
                options={"connect_timeout": "0.4", "retries": "0"},
            )
        assert time.monotonic() - start > 0.3
        for connection in waiting:
            connection.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"-ERR unknown command sesame42, of me\r\n",
        b"-LOADING sesame42\r\n",
        b"500 unknown command: AUTH me sesame42\r\n",
        b"+sesame42\r\n",
        b"$8\r\nsesame42\r\n",
    ],
)
def test_a_password_that_is_repeated(answer: bytes) -> None:
    with answering(answer) as url, pytest.raises(Error) as error:
        ops.load(
            url.replace("//", "//me:sesame42@"), options={"retries": "0", "stall_timeout": "1"}
        )
    assert "sesame42" not in str(error.value)
