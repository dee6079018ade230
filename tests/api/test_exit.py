"""Calls of other threads when the program exits: they end, and nothing is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.process import run_python

# A server that accepts connections and responds to none, and one that sends half of a file.
SERVERS = """
import os, socket, sys, threading, time
import tensorizer_ops  # with threads, it would import torch as well

folder, how = sys.argv[1:]
kept = []

def serve(handle):
    listener = socket.create_server(("127.0.0.1", 0))
    def run():
        while True:
            kept.append(listener.accept()[0])
            handle(kept[-1])
    threading.Thread(target=run, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/x"

asked = threading.Semaphore(0)
silent = serve(lambda connection: asked.release())

def in_thread(work):
    threading.Thread(target=work, daemon=True).start()
"""

WITHOUT_TORCH = """
for work in (tensorizer_ops.names, tensorizer_ops.metadata, tensorizer_ops.verify):
    in_thread(lambda work=work: work(silent))
    asked.acquire()
assert "torch" not in sys.modules
"""

WITH_TORCH = """
import torch

ops = torch.ops.tensorizer
here = folder + "/here"
tensors = {"x": torch.ones(1 << 18)}
tensorizer_ops.save(here, tensors)
whole = open(here, "rb").read()

def half(connection):
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(whole))
    connection.sendall(whole[:len(whole) // 2])
    asked.release()

if how == "wait":
    for work in (
        lambda: tensorizer_ops.load(silent),
        lambda: tensorizer_ops.save(silent, tensors),
        lambda: tensorizer_ops.Reader(silent).load(),
        lambda: list(tensorizer_ops.iterate(silent)),
        lambda: tensorizer_ops.Reader(silent).prefetch().result(),
        lambda: ops.verify(silent),
    ):
        in_thread(work)
        asked.acquire()
    url = serve(half)
    in_thread(lambda: tensorizer_ops.convert(url, folder + "/copy"))
    asked.acquire()
else:
    passed = threading.Semaphore(0)

    def repeat(work):
        while True:
            try:
                work()
            except tensorizer_ops.errors.Cancelled:
                pass
            passed.release()

    works = (
        lambda: tensorizer_ops.load(here),
        lambda: tensorizer_ops.names(here),
        lambda: tensorizer_ops.save(folder + "/again", tensors),
        lambda: ops.crc32(tensors["x"]),
        lambda: torch.mm(tensors["x"].view(512, 512), tensors["x"].view(512, 512)),
    )
    for work in works:
        in_thread(lambda work=work: repeat(work))
    for _ in range(10 * len(works)):
        passed.acquire()
"""


@pytest.mark.parametrize("run", range(3))
@pytest.mark.parametrize(
    ("code", "how"),
    [(WITHOUT_TORCH, "wait"), (WITH_TORCH, "wait"), (WITH_TORCH, "repeat")],
    ids=["without torch", "that wait", "that return"],
)
def test_calls_at_exit(tmp_path: Path, code: str, how: str, run: int) -> None:
    done = run_python(SERVERS + code, str(tmp_path), how, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"terminate" not in done.stderr
    assert set(os.listdir(tmp_path)) <= {"here", "again"}


LATE = """
import atexit, os, sys, threading, time

folder = sys.argv[1]
begin = threading.Event()
ended = threading.Event()

@atexit.register
def after_the_gate():
    tensorizer_ops.save(folder + "/late", {"x": torch.ones(3)})
    assert tensorizer_ops.load(folder + "/late")["x"].tolist() == [1, 1, 1]
    begin.set()
    ended.wait()
    print(*results)

import torch
import tensorizer_ops

results = []

def work():
    begin.wait()
    for call in (tensorizer_ops.load, tensorizer_ops.names):
        try:
            call(folder + "/late")
        except tensorizer_ops.errors.Cancelled as error:
            results.append(str(error))
    ended.set()

threading.Thread(target=work, daemon=True).start()
"""


def test_only_the_main_thread_can_call_after_that(tmp_path: Path) -> None:
    refusal = "the program ends, and no thread but the main one can call this any more"
    done = run_python(LATE, str(tmp_path))
    assert done.stdout.decode().split("\n") == [f"{refusal} {refusal}", ""]


FORKED = """
import atexit, os, sys, threading, time

@atexit.register
def after_the_gate():
    if os.getpid() != parent:
        os._exit(7 if time.monotonic() - begin < 5 else 1)

import torch
import tensorizer_ops

parent = os.getpid()
fifo = sys.argv[1] + "/fifo"
os.mkfifo(fifo)
threading.Thread(target=lambda: tensorizer_ops.load(fifo), daemon=True).start()
writer = open(fifo, "wb")  # the load has opened it
pid = os.fork()
begin = time.monotonic()
if pid:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""


def test_a_fork_does_not_wait_for_calls_of_its_parent(tmp_path: Path) -> None:
    run_python(FORKED, str(tmp_path))
