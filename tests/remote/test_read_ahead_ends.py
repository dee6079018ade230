"""Events that end read-ahead: a fork, a replaced file, an error, a cancel, Ctrl-C."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
import torch

import tensorizer_ops
from local_servers.web import Web
from support.process import fork, fork_python, wait
from support.samples import same
from support.small_tensors import NAMES, SMALL, load, small_server
from tensorizer_ops.stream_io import open_stream

Reader = torch.classes.tensorizer.Reader


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with small_server(tmp_path_factory.mktemp("web")) as server:
        yield server


def test_a_child_goes_on(web: Web) -> None:
    reader = Reader(web.url("small.tensors"), None)
    load(reader, *NAMES[:500])
    load(reader, NAMES[500])

    def go_on() -> None:
        for name in NAMES[501:]:
            assert same(load(reader, name)[name], SMALL[name])

    child = fork(go_on)
    go_on()
    assert wait(child) == 0


def test_a_file_that_changes_between_two_of_them(web: Web) -> None:
    path = web.root / "changing.tensors"
    path.write_bytes((web.root / "large.tensors").read_bytes())
    reader = Reader(web.url(path.name), None)
    load(reader, "t10")
    load(reader, "t11")
    tensorizer_ops.save(str(path), {f"t{i}": torch.zeros(65536) for i in range(300)})
    with pytest.raises(ConnectionError, match="has changed"):
        for i in range(12, 300):
            load(reader, f"t{i}")


@pytest.mark.parametrize("end", ["close", "cancel"])
def test_an_end_while_it_reads_ahead(web: Web, end: str) -> None:
    reader = Reader(web.url("slow/large.tensors"), None)
    names = reader.names()
    failures: list[Exception] = []

    def read() -> None:
        try:
            for name in names:
                load(reader, name)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    while reader.stats()["loads"] < 3:  # at 1 MiB/s, the whole file takes a minute and a half
        time.sleep(0.01)
    while not failures:
        getattr(reader, end)()
        time.sleep(0.01)
    thread.join()
    assert "cancelled" in str(failures[0]) or "closed" in str(failures[0])


def test_ctrl_c_while_it_reads_ahead(web: Web) -> None:
    code = """
import os, signal, sys, threading, time, torch, tensorizer_ops

signal.signal(signal.SIGINT, signal.default_int_handler)
reader = torch.classes.tensorizer.Reader(sys.argv[1], None)
names = list(reader.names())
done = []

def send():
    while len(done) < 3:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

thread = threading.Thread(target=send)
thread.start()
try:
    for name in names:
        reader.load([name], None, None, "none", True, 0)
        done.append(name)
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("by itself")
thread.join()
assert 3 <= len(done) < len(names)
assert reader.load([names[0]], None, None, "none", True, 0)
"""
    fork_python(code, web.url("slow/large.tensors"))


def test_parts_that_are_not_where_they_should(web: Web) -> None:
    data = (web.root / "few.tensors").read_bytes()
    for path in ("few.tensors", "no-ranges/few.tensors"):
        with open_stream(web.url(path), begin=len(data) + 5) as stream:
            assert stream.read() == b""
            assert stream.seek(0, os.SEEK_END) == len(data)
            stream.seek(10)
            assert stream.read(90) == data[10:100]
        with open_stream(web.url(path), begin=1000, end=2000) as stream:
            assert stream.read() == data[1000:2000]
            stream.seek(0)
            assert stream.read() == data[:2000]
