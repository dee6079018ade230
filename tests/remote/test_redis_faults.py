"""Redis servers that break, stall, or change a file while it is in use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.redis_server import RedisServer, redis_server
from local_servers.waiting import wait_until
from support.relay import Relay, relay
from support.samples import assert_same, sample

ops = torch.ops.tensorizer
Reader, Writer = torch.classes.tensorizer.Reader, torch.classes.tensorizer.Writer
Error = tensorizer_ops.errors.Error

FILE = {f"t{i}": sample(torch.float32, (600, 1000 + i), i) for i in range(6)}
OTHER = {name: tensor + 1 for name, tensor in FILE.items()}
SIZE = sum(tensor.nbytes for tensor in FILE.values())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
def between(server: RedisServer) -> Iterator[Relay]:
    with relay(server.port) as between:
        yield between


def url(place: RedisServer | Relay) -> str:
    return f"redis://127.0.0.1:{place.port}/m"


def nothing() -> None:
    pass


def no_keys_but(server: RedisServer, expected: dict[bytes, bytes]) -> None:
    """Waits until `expected` is all: the server may still run commands that it has received."""
    wait_until(lambda: server.values() == expected)


@pytest.mark.parametrize("there", [False, True])
def test_a_lost_response_to_the_last_command(
    server: RedisServer, between: Relay, there: bool
) -> None:
    if there:
        ops.save(url(server), OTHER)
    between.swallow(b"EXEC\r\n")
    ops.save(url(between), FILE)
    saved = server.values()
    ops.save(url(server), FILE)
    assert saved == server.values()


def test_a_lost_response_of_a_server_that_is_gone(server: RedisServer, between: Relay) -> None:
    between.swallow(b"EXEC\r\n", last=True)
    with pytest.raises(ConnectionError, match="whether the new file is there is not known"):
        ops.save(url(between), FILE)
    assert_same(ops.load(url(server)), FILE)


def cancelled(
    server: RedisServer, between: Relay, work: Callable[[], object], cancel: Callable[[], None]
) -> None:
    """Runs `work` against a stopped server, and checks that `cancel` ends it."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except Error as error:
            errors.append(error)

    with server.stopped():
        before = between.passed
        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: between.passed > before)
        cancel()
        thread.join(100)
        assert [type(error) for error in errors] == [tensorizer_ops.errors.Cancelled]


@pytest.mark.parametrize("passed", [0, 30, 300, 3000, 300_000, 3_000_000, SIZE])
@pytest.mark.parametrize("every", [True, False], ids=["every", "one"])
def test_loads_go_on_where_a_connection_broke(
    server: RedisServer, between: Relay, passed: int, every: bool
) -> None:
    ops.save(url(server), FILE)
    reader = Reader(url(between), None)
    between.after(passed, between.end_all if every else nothing)
    assert_same(reader.load(None, None, None, "all", False, 0), FILE)
    assert between.connections > 1
    between.after(passed, between.end_all if every else nothing)
    assert_same(ops.load(url(between), threads=1), FILE)


def test_connections_that_the_server_has_closed_meanwhile(
    server: RedisServer, between: Relay
) -> None:
    ops.save(url(server), FILE)
    reader = Reader(url(between), {"connections": "16", "retries": "1"})
    for _ in range(3):
        assert_same(reader.load(None, None, None, "none", False, 0), FILE)
        between.end_all()


@pytest.mark.parametrize("every", [True, False], ids=["every", "one"])
def test_a_file_that_is_replaced_while_a_connection_breaks(
    server: RedisServer, between: Relay, every: bool
) -> None:
    """A remaining connection detects the change. If all broke, the new list of keys differs."""
    ops.save(url(server), FILE)

    def harm() -> None:
        ops.save(url(server), FILE | {"t0": torch.ones(3)} if every else OTHER)
        if every:
            between.end_all()

    between.after(SIZE // 2, harm)
    with pytest.raises(ConnectionError, match="has changed while it was loaded"):
        ops.load(url(between))


@pytest.mark.parametrize("connections", [1, 2, 4])
def test_a_file_that_is_replaced_while_a_connection_does_not_watch(
    server: RedisServer, between: Relay, connections: int
) -> None:
    """A connection watches no key between its EXEC and its WATCH. The other connections do."""
    refused = 0
    for number in range(1, 8):
        ops.save(url(server), FILE)
        between.cut(number, b"EXEC\r\n", lambda: ops.save(url(server), OTHER))
        try:
            loaded = ops.load(url(between), threads=1, options={"connections": str(connections)})
        except ConnectionError as error:
            assert "has changed while it was loaded" in str(error)
            refused += 1
        else:
            old = torch.equal(loaded["t0"], FILE["t0"])
            assert_same(loaded, FILE if old else OTHER)
    assert refused > 1


def test_a_server_that_dies_during_a_load(server: RedisServer, between: Relay) -> None:
    ops.save(url(server), FILE)

    def harm() -> None:
        server.process.kill()
        server.process.wait()

    between.after(SIZE // 2, harm)
    with pytest.raises(ConnectionError, match="after 1 more try"):
        ops.load(url(between), options={"retries": "1"})


@pytest.mark.parametrize("kind", ["lent", "parts", "writer"])
def test_a_server_that_dies_during_a_save(server: RedisServer, between: Relay, kind: str) -> None:
    def harm() -> None:
        server.process.kill()
        server.process.wait()

    between.after(SIZE // 2, harm)
    with pytest.raises(ConnectionError):
        save(url(between), FILE, kind)


def save(place: str, file: dict[str, torch.Tensor], kind: str) -> None:
    if kind != "writer":
        # A tensor that is not contiguous is written in parts.
        columns = {name: tensor.t().contiguous().t() for name, tensor in file.items()}
        ops.save(place, columns if kind == "parts" else file)
        return
    writer = Writer(place, None)
    for name, tensor in file.items():
        writer.add(name, tensor, 2, 0)
    writer.close()


@pytest.mark.parametrize("kind", ["lent", "parts", "writer"])
def test_a_save_whose_connections_break_leaves_nothing(
    server: RedisServer, between: Relay, kind: str
) -> None:
    ops.save(url(server), FILE)
    before = server.values()
    ended = between.passed
    save(url(between), OTHER, kind)
    whole = between.passed - ended
    after = server.values()
    ops.save(url(server), FILE)
    failed = 0
    for step in range(12):
        # The last steps cut the connections while the file appears.
        cut = whole * step // 8 if step < 8 else whole - (12 - step) * 400
        between.after(cut, between.end_all)
        try:
            save(url(between), OTHER, kind)
        except ConnectionError:
            failed += 1
            # If only the last reply was lost, the new file is complete.
            no_keys_but(server, after if server.values() == after else before)
        else:
            no_keys_but(server, after)
        ops.save(url(server), FILE)
    assert failed > 6


@pytest.mark.parametrize("may_end", [True, False], ids=["ended", "tried again"])
def test_what_arrives_after_a_save_was_given_up(
    server: RedisServer, between: Relay, may_end: bool
) -> None:
    """A proxy holds the last commands of a failed save, and delivers them after the save has
    removed its keys. The save had the server end that connection, so they have no effect. If the
    user may not end connections, the save removes the keys again."""
    arrived: list[bool] = []

    def deliver() -> None:
        between.deliver()
        arrived.append(True)

    between.strand(b"SETEX")
    if not may_end:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "default", "-client")
        between.cut(2, b"UNLINK", deliver)
    writer = Writer(url(between), None)
    with pytest.raises(ConnectionError):
        writer.add("x", torch.ones(3), 2, 0)
    if may_end:
        deliver()
    assert arrived
    assert server.values() == {}


def test_a_save_is_given_up_over_a_new_connection_where_all_have_broken(
    server: RedisServer, between: Relay
) -> None:
    writer = Writer(url(between), {"hashes": "all"})
    for name, tensor in FILE.items():
        writer.add(name, tensor, 2, 0)
    assert between.connections > 1 and server.values()
    between.end_all()
    writer.abort()
    assert server.values() == {}


# A stopped server does not count as a stall.
PATIENT = {"stall_timeout": "600"}


@pytest.mark.parametrize("work", ["names", "load"])
def test_a_load_is_cancelled_while_the_server_stands_still(
    server: RedisServer, between: Relay, work: str
) -> None:
    ops.save(url(server), FILE)
    reader = Reader(url(between), PATIENT)
    if work == "names":
        cancelled(server, between, reader.names, reader.cancel)
        return
    reader.names()
    load = lambda: reader.load(None, None, None, "none", False, 0)  # noqa: E731
    cancelled(server, between, load, reader.cancel)


@pytest.mark.parametrize("work", ["add", "close"])
def test_a_save_is_cancelled_while_the_server_stands_still(
    server: RedisServer, between: Relay, work: str
) -> None:
    ops.save(url(server), FILE)
    before = server.values()
    writer = Writer(url(between), PATIENT)
    writer.add("small", torch.ones(3), 2, 0)
    if work == "close":
        cancelled(server, between, writer.close, writer.cancel)
    else:
        large = torch.zeros(1 << 26)
        cancelled(server, between, lambda: writer.add("large", large, 2, 0), writer.cancel)
    no_keys_but(server, before)


def test_answers_with_a_wrong_bit(server: RedisServer, between: Relay) -> None:
    """Whichever bit it is, the load ends, with the right tensors or with an error."""
    file = {f"t{i}": sample(torch.float32, (i, 10), i) for i in range(20)}
    ops.save(url(server), file)
    options = {"stall_timeout": "0.3", "retries": "0", "connections": "2"}
    begin = between.passed
    assert_same(ops.load(url(between), verify="all", options={"connections": "2"}), file)
    whole = between.passed - begin
    wrong = 0
    for step in range(60):
        between.flip(whole * step // 60)
        try:
            loaded = ops.load(url(between), verify="all", options=options)
        except Error:
            wrong += 1
        else:
            assert_same(loaded, file)
    assert wrong > 30
