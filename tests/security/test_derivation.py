"""Deriving a key takes seconds, and a signal or a cancel ends the wait for it."""

from __future__ import annotations

import struct
from pathlib import Path

import torch

import tensorizer_ops
from support.process import fork_python

ops = torch.ops.tensorizer

# A derivation that takes many minutes, in 64 MiB.
PASSES, MEMORY = 100_000, 64 << 20

PREAMBLE = """
import os, signal, sys, threading, time, torch, tensorizer_ops
from pathlib import Path

ops = torch.ops.tensorizer
Reader, Writer = torch.classes.tensorizer.Reader, torch.classes.tensorizer.Writer
hard, easy = sys.argv[1:]
tensorizer_ops.keys.add("derived", passphrase="open sesame")
KDF = "100000,67108864"
OPTIONS = {"key": "named:derived"}
HARD = OPTIONS | {"kdf_limit": KDF}


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) << 12


def until(condition):
    while not condition():
        time.sleep(0.01)


def once_it_derives(work):
    "Calls `work` when a derivation has taken its memory."
    before = resident()

    def run():
        until(lambda: resident() > before + (32 << 20))
        work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def interrupted(work):
    thread = once_it_derives(interrupt)
    try:
        work()
    except KeyboardInterrupt:
        thread.join()
    else:
        raise AssertionError("nothing was interrupted")
"""

CALLS = {
    "load": "lambda: ops.load(hard, options=HARD)",
    "reader": "lambda: Reader(hard, HARD).names()",
    "save": 'lambda: ops.save(hard + ".new", {"x": torch.ones(3)}, options=OPTIONS | {"kdf": KDF})',
    "writer": 'lambda: Writer(hard + ".new", OPTIONS | {"kdf": KDF})',
    "encrypt": "lambda: tensorizer_ops.decrypt(hard, hard + '.new', key='named:derived',"
    " source_options={'kdf_limit': KDF})",
    "params": "lambda: tensorizer_ops.EncryptionParams.from_string('open sesame',"
    " opslimit=100000, memlimit=67108864)",
}

INTERRUPTED = """
interrupted({work})
assert not os.path.exists(hard + ".new")
# Other loads in this process work while the abandoned derivation still runs.
assert ops.load(easy, options=OPTIONS)["x"].tolist() == [1, 1, 1]
child = os.fork()
if child == 0:
    assert ops.load(easy, options=OPTIONS)["x"].tolist() == [1, 1, 1]
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""

CANCELLED = """
reader = Reader(hard, HARD)
thread = once_it_derives(reader.cancel)
try:
    reader.names()
except tensorizer_ops.errors.Cancelled:
    thread.join()
else:
    raise AssertionError("nothing was cancelled")
"""

HANDLED = """
# The signal handler asks for the same key that the interrupted call is deriving.
reader = Reader(hard, HARD)
asked = []


def handler(*_):
    asked.append(resident())
    try:
        Reader(hard, HARD | {"kdf_limit": "1,8192"}).names()
    except tensorizer_ops.errors.Crypto:
        asked.append("refused")
    assert ops.load(easy, options=OPTIONS)["x"].tolist() == [1, 1, 1]
    reader.cancel()


signal.signal(signal.SIGINT, handler)
thread = once_it_derives(interrupt)
try:
    reader.names()
except tensorizer_ops.errors.Cancelled:
    thread.join()
assert asked[1:] == ["refused"], asked
"""

RELEASED = """
# The memory of a derivation is freed when it ends, even if no caller waits for it any more.
before = resident()
options = OPTIONS | {"kdf": "20,268435456"}
interrupted(lambda: ops.save(easy + ".new", {"x": torch.ones(3)}, options=options))
until(lambda: resident() < before + (32 << 20))
"""


def files(tmp_path: Path) -> tuple[str, str]:
    """Returns a file whose key takes many minutes to derive, and one whose key takes no time."""
    hard, easy = str(tmp_path / "hard"), str(tmp_path / "easy")
    tensorizer_ops.keys.add("derived", passphrase="open sesame")
    try:
        options = {"key": "named:derived", "kdf": "min"}
        ops.save(easy, {"x": torch.ones(3)}, options=options)
    finally:
        tensorizer_ops.keys.remove("derived")
    data = Path(easy).read_bytes()
    least = struct.pack("<HQQ", 1, 1, 8192)
    assert data.count(least) == 2
    Path(hard).write_bytes(data.replace(least, struct.pack("<HQQ", 1, PASSES, MEMORY)))
    return hard, easy


def test_a_signal_ends_the_wait_for_a_key(tmp_path: Path) -> None:
    hard, easy = files(tmp_path)
    for work in CALLS.values():
        fork_python(PREAMBLE + INTERRUPTED.format(work=work), hard, easy)


def test_a_cancel_ends_the_wait_for_a_key(tmp_path: Path) -> None:
    fork_python(PREAMBLE + CANCELLED, *files(tmp_path))


def test_a_handler_loads_while_a_key_is_derived(tmp_path: Path) -> None:
    fork_python(PREAMBLE + HANDLED, *files(tmp_path))


def test_a_derivation_that_nobody_waits_for_gives_its_memory_back(tmp_path: Path) -> None:
    fork_python(PREAMBLE + RELEASED, *files(tmp_path))
