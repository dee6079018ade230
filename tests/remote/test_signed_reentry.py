"""Signed files that a signal handler loads while its thread loads them, or a forked child."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.process import fork, wait
from support.samples import assert_same
from support.scripted import Asked, ScriptedServer, scripted
from support.signer import Signer

CPU = torch.device("cpu")


@dataclass
class Held:
    """A signed file on a server that lets its reader wait for one answer."""

    reader: object
    tensors: dict[str, torch.Tensor]
    server: ScriptedServer
    arrived: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    next_arrived: threading.Event = field(default_factory=threading.Event)

    def load(self, names: list[str] | None = None) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = self.reader.load(names, CPU, None, "none", False, 1)  # type: ignore[attr-defined]
        return found


@pytest.fixture(params=["shards", "files"])
def held(request: pytest.FixtureRequest, tmp_path: Path, signer: Signer) -> Iterator[Held]:
    file = tmp_path / "m.tensors"
    tensors = {f"t{i}": torch.randn(1 << 20) for i in range(5)}
    tensorizer_ops.save(file, tensors)
    tensorizer_ops.sign(file, key=signer.private, method=request.param)
    files = {f"/{path.name}": path.read_bytes() for path in tmp_path.glob("m.*")}

    def answer(asked: Asked) -> None:
        if asked.path not in files:
            return asked.say("404 Not Found")
        last = int(asked.headers["range"].rpartition("-")[2])
        is_data = asked.path == "/m.tensors" and last >= 4 << 20  # with the end of the first tensor
        if is_data and not given.arrived.is_set():
            given.arrived.set()
            given.go_on.wait()
        elif is_data:
            given.next_arrived.set()
        asked.say_range(files[asked.path], ETag='"1"')

    with scripted(answer) as server:
        reader = torch.classes.tensorizer.Reader(server.url("m.tensors"), signer.options)
        given = Held(reader, tensors, server)
        try:
            yield given
        finally:
            given.go_on.set()


def load_twice(
    held: Held, names: list[str] | None, others: list[str] | None, arrived: threading.Event
) -> None:
    """Load, and meanwhile load others in a signal handler."""
    inside: dict[str, torch.Tensor] = {}

    def handler(*_: object) -> None:
        inside.update(held.load(others))
        held.go_on.set()

    def interrupt() -> None:
        arrived.wait()
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        assert_same(held.load(names), {name: held.tensors[name] for name in names or held.tensors})
        assert_same(inside, {name: held.tensors[name] for name in others or held.tensors})
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_loads_what_its_thread_is_loading(held: Held) -> None:
    load_twice(held, None, None, held.arrived)


@pytest.mark.parametrize("held", ["shards"], indirect=True)
def test_a_handler_loads_what_waits_for_its_thread(held: Held) -> None:
    """Another thread waits for a part that the interrupted load has begun to fetch."""

    def load() -> None:
        held.arrived.wait()
        held.load(["t1"])

    thread = threading.Thread(target=load)
    thread.start()
    load_twice(held, ["t0"], ["t1"], held.next_arrived)
    thread.join()


def test_a_child_loads_what_another_thread_of_its_parent_is_loading(held: Held) -> None:
    found: dict[str, torch.Tensor] = {}
    thread = threading.Thread(target=lambda: found.update(held.load()))
    thread.start()
    held.arrived.wait()
    assert wait(fork(lambda: assert_same(held.load(), held.tensors))) == 0
    held.go_on.set()
    thread.join()
    assert_same(found, held.tensors)
