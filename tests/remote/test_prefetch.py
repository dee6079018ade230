"""Tensors that are fetched before they are loaded: what is asked of a server, and what is kept."""

from __future__ import annotations

import gc
import os
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.waiting import LAST_RESORT, wait_until
from support.process import run_python
from support.samples import assert_same, same, sample
from support.scripted import Asked, ScriptedServer, scripted
from tensorizer_ops import errors

MIB = 1 << 20
PATIENCE = LAST_RESORT
# 40 tensors, of which every second one lies apart from the others.
TENSORS = {f"t{i:02}": sample(torch.float32, (20_000 + i,), i) for i in range(40)}
APART = list(TENSORS)[::2]
KEY = {"key": "named:prefetch"}


@pytest.fixture(scope="module", autouse=True)
def key() -> Iterator[None]:
    tensorizer_ops.keys.add("prefetch", key=bytes(range(32)))
    yield
    tensorizer_ops.keys.remove("prefetch")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("file") / "m.tensors"
    tensorizer_ops.save(path, TENSORS)
    return path.read_bytes()


class Doors:
    """Responses to a prefetch wait until they are opened, but for those to `passes`."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.holds = False
        self.passes: Callable[[int], bool] = lambda begin: False

    def wait(self, asked: Asked) -> None:
        begin = int(asked.headers["range"].removeprefix("bytes=").split("-")[0])
        if self.holds and not self.passes(begin):
            assert self.open.wait(PATIENCE)


@contextmanager
def serving(content: bytes) -> Iterator[tuple[ScriptedServer, Doors]]:
    doors = Doors()

    def answer(asked: Asked) -> None:
        doors.wait(asked)
        asked.say_range(content, ETag='"1"')

    with scripted(answer) as server:
        try:
            yield server, doors
        finally:
            doors.open.set()


def await_requests(server: ScriptedServer, count: int) -> None:
    wait_until(lambda: len(server.asked) >= count)


@contextmanager
def on_its_way(
    content: bytes,
) -> Iterator[tuple[ScriptedServer, Doors, tensorizer_ops.Reader, tensorizer_ops.Prefetch]]:
    """A reader that fetches t33: the server has received the request, and does not respond."""
    with serving(content) as (server, doors), tensorizer_ops.Reader(server.url()) as reader:
        len(reader)
        before = len(server.asked)
        doors.holds = True
        fetch = reader.prefetch(["t33"])
        await_requests(server, before + 1)
        yield server, doors, reader, fetch


@pytest.mark.parametrize("kind", ["tensors", "encrypted", "safetensors"])
def test_what_was_fetched_is_not_asked_for_again(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("m.safetensors" if kind == "safetensors" else "m.tensors")
    options = KEY if kind == "encrypted" else {}
    tensorizer_ops.save(path, TENSORS, hashes="chunked", options=options)
    with serving(path.read_bytes()) as (server, _):
        url = server.url(path.name)
        with tensorizer_ops.Reader(url, options=options, verify="all") as reader:
            assert reader.prefetch(APART).result(PATIENCE) is None
            asked = len(server.asked)
            loaded = reader.load(APART[:15]) | {name: reader[name] for name in APART[15:]}
            assert len(server.asked) == asked
            assert_same(loaded, {name: TENSORS[name] for name in APART})
            # It is not kept any longer, and a load of more reads what is missing.
            reader.prefetch(APART[:10]).result(PATIENCE)
            asked = len(server.asked)
            assert_same(reader.load(), TENSORS)
            assert len(server.asked) > asked


def test_all_tensors_in_few_requests(content: bytes) -> None:
    with serving(content) as (server, _), tensorizer_ops.Reader(server.url()) as reader:
        len(reader)
        before = len(server.asked)
        reader.prefetch().result(PATIENCE)
        assert len(server.asked) - before <= 3
        assert_same(reader.load(), TENSORS)
        assert len(server.asked) - before <= 3


def test_parts_come_from_what_was_fetched(content: bytes) -> None:
    with serving(content) as (server, _), tensorizer_ops.Reader(server.url()) as reader:
        reader.prefetch(["t35"]).result(PATIENCE)
        asked = len(server.asked)
        for begin in (100, 300):
            part = reader.load(["t35"], slices={"t35": slice(begin, 500)})["t35"]
            assert same(part, TENSORS["t35"][begin:500])
        assert same(reader["t35"], TENSORS["t35"])
        assert len(server.asked) == asked


def test_what_lies_between_is_not_asked_for(tmp_path: Path) -> None:
    tensors = {f"x{i:03}": sample(torch.float32, (500,), i) for i in range(1500)}
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, tensors)
    names = list(tensors)[750::2]
    with serving(path.read_bytes()) as (server, _), tensorizer_ops.Reader(server.url()) as reader:
        len(reader)
        before = len(server.asked)
        reader.prefetch(names).result(PATIENCE)
        asked = len(server.asked)
        assert asked - before < 5
        assert_same(reader.load(names), {name: tensors[name] for name in names})
        assert len(server.asked) == asked


def test_verification_reads_the_file_itself(content: bytes) -> None:
    with serving(content) as (server, _), tensorizer_ops.Reader(server.url()) as reader:
        reader.prefetch(["t35"]).result(PATIENCE)
        reader.verify()
        reader.digest()
        asked = len(server.asked)
        assert same(reader["t35"], TENSORS["t35"])
        assert len(server.asked) == asked


def test_a_load_waits_for_what_is_on_its_way(content: bytes) -> None:
    with on_its_way(content) as (server, doors, reader, fetch):
        asked = len(server.asked)
        threading.Timer(0.3, doors.open.set).start()
        assert same(reader["t33"], TENSORS["t33"])
        assert fetch.result(PATIENCE) is None
        assert len(server.asked) == asked


def test_a_load_does_not_wait_for_what_has_not_begun(tmp_path: Path) -> None:
    """With one request at a time, the second one has not begun."""
    tensors = {
        n: sample(torch.float32, (size << 18,)) for n, size in (("a", 3), ("b", 20), ("c", 3))
    }
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, tensors)
    options = {"connections": "1"}
    with (
        serving(path.read_bytes()) as (server, doors),
        tensorizer_ops.Reader(server.url(), options=options) as reader,
    ):
        last = int(reader.stored("c")["header_offset"])
        before = len(server.asked)
        doors.holds = True
        doors.passes = lambda begin: begin >= last
        fetch = reader.prefetch(["a", "c"])
        await_requests(server, before + 1)
        assert same(reader["c"], tensors["c"])
        assert not fetch.done()
        doors.open.set()
        assert fetch.result(PATIENCE) is None
        asked = len(server.asked)
        assert same(reader["a"], tensors["a"])
        assert len(server.asked) == asked


def test_the_ceiling(content: bytes) -> None:
    """Half of 1 MiB has room for six tensors of 80,000 bytes."""
    options = {"memory_ceiling": str(MIB)}
    names = list(TENSORS)[25:]
    with (
        serving(content) as (server, _),
        tensorizer_ops.Reader(server.url(), options=options) as reader,
    ):
        with pytest.raises(ValueError, match=r"in advance, and 524288 can be kept.*ceiling"):
            reader.prefetch(names[:10]).result(PATIENCE)
        reader.prefetch(names[:3]).result(PATIENCE)
        reader.prefetch(names[3:6]).result(PATIENCE)
        reader.prefetch(names[:1]).result(PATIENCE)  # is there, and newer now
        reader.prefetch(names[6:8]).result(PATIENCE)  # in the room of the two oldest
        asked = len(server.asked)
        kept = [names[0], *names[3:8]]
        assert_same(reader.load(kept), {name: TENSORS[name] for name in kept})
        assert len(server.asked) == asked
        assert same(reader[names[1]], TENSORS[names[1]])
        assert len(server.asked) > asked


def test_two_fetches_of_the_same_are_one(content: bytes) -> None:
    with on_its_way(content) as (server, doors, reader, first):
        before = len(server.asked)
        second = reader.prefetch(["t33"])
        time.sleep(0.2)
        assert not second.done()
        # The other one takes over what the first gives up.
        first.cancel()
        with pytest.raises(errors.Cancelled):
            first.result(PATIENCE)
        await_requests(server, before + 1)
        assert not second.done()
        doors.open.set()
        assert second.result(PATIENCE) is None
        asked = len(server.asked)
        assert same(reader["t33"], TENSORS["t33"])
        assert len(server.asked) == asked == before + 1


@pytest.mark.parametrize("first_use", [False, True])
def test_a_failed_fetch_keeps_nothing_alive(content: bytes, first_use: bool) -> None:
    with serving(content) as (server, _):
        reader = tensorizer_ops.Reader(server.url())
        if not first_use:
            len(reader)
        fetch = reader.prefetch(["no such tensor"])
        assert isinstance(fetch.exception(PATIENCE), KeyError)
        ends = [weakref.ref(reader), weakref.ref(fetch)]
        gc.disable()
        try:
            del reader, fetch
            # The thread may be ending.
            wait_until(lambda: not any(end() for end in ends))
        finally:
            gc.enable()


def test_ending_it_while_the_file_is_opened(content: bytes) -> None:
    with serving(content) as (server, doors), tensorizer_ops.Reader(server.url()) as reader:
        doors.holds = True
        fetch = reader.prefetch(["t33"])
        await_requests(server, 1)
        assert fetch.cancel()
        begun = time.monotonic()
        with pytest.raises(errors.Cancelled):
            fetch.result(PATIENCE)
        assert time.monotonic() - begun < PATIENCE / 3
        doors.holds = False
        assert same(reader["t33"], TENSORS["t33"])


@pytest.mark.parametrize("how", ["future", "cancel", "close"])
def test_ending_it(content: bytes, how: str) -> None:
    with on_its_way(content) as (_, doors, reader, fetch):
        if how == "future":
            assert fetch.cancel()
        elif how == "cancel":
            reader.cancel()
        else:
            reader.close()
        with pytest.raises(errors.Cancelled):
            fetch.result(PATIENCE)
        assert not fetch.cancel()
        doors.holds = False
        if how != "close":
            assert same(reader["t33"], TENSORS["t33"])
            assert reader.prefetch(["t34"]).result(PATIENCE) is None


def test_an_error_of_the_server(content: bytes) -> None:
    fails = False

    def answer(asked: Asked) -> None:
        if fails:
            asked.say("403 Forbidden")
        else:
            asked.say_range(content, ETag='"1"')

    with scripted(answer) as server, tensorizer_ops.Reader(server.url()) as reader:
        len(reader)
        fails = True
        with pytest.raises(PermissionError, match="403"):
            reader.prefetch(["t33"]).result(PATIENCE)
        fails = False
        assert same(reader["t33"], TENSORS["t33"])


def test_what_cannot_be_fetched(path: str, content: bytes) -> None:
    Path(path).write_bytes(content)
    with tensorizer_ops.Reader(path) as reader, pytest.raises(KeyError, match="no tensor 'x'"):
        reader.prefetch(["x"]).result(PATIENCE)
    with pytest.raises(ValueError, match="closed"):
        reader.prefetch()
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe, os.fdopen(reading, "rb") as end:
        writer = threading.Thread(target=lambda: (pipe.write(content), pipe.close()))
        writer.start()
        with tensorizer_ops.Reader(f"fd:{end.fileno()}") as reader:
            with pytest.raises(ValueError, match="read only once"):
                reader.prefetch(["t01"]).result(PATIENCE)
            assert_same(reader.load(), TENSORS)
        writer.join()


def test_neither_a_child_nor_the_end_of_a_program_waits_for_it(
    content: bytes, tmp_path: Path
) -> None:
    is_held = tmp_path / "held"
    with serving(content) as (server, doors):
        with tensorizer_ops.Reader(server.url()) as reader:
            stored = reader.stored("t33")
        begins = {int(stored["header_offset"]), int(stored["data_offset"])}
        held: list[int] = []

        def passes(asked: int) -> bool:
            if asked in begins:
                held.append(asked)
                is_held.touch()
            return asked not in begins or len(held) > 1

        doors.holds, doors.passes = True, passes
        code = f"""
            import os
            import time
            import tensorizer_ops

            reader = tensorizer_ops.Reader({server.url()!r})
            len(reader)
            fetch = reader.prefetch(["t33"])
            while not os.path.exists({str(is_held)!r}):
                time.sleep(0.01)
            child = os.fork()
            if child == 0:
                print(reader["t33"].numel(), reader["t34"].numel(), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            print(fetch.done())
        """
        begun = time.monotonic()
        done = run_python(textwrap.dedent(code))
        assert done.stdout.split() == [b"20033", b"20034", b"False"]
        assert time.monotonic() - begun < PATIENCE
        assert len(held) == 2
