"""Other processes: scripts in their own interpreter, forks, and FIFOs with a peer thread."""

from __future__ import annotations

import atexit
import gc
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch

from local_servers.waiting import LAST_RESORT
from support.warm import WarmPython

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT = LAST_RESORT
ONLY_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root gives files to others, or becomes somebody else"
)


def resident() -> int:
    """Returns the resident memory of this process, in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def environment() -> dict[str, str]:
    """Returns this process's environment, with the package importable from any directory."""
    paths = [os.environ.get("PYTHONPATH", ""), str(ROOT), str(ROOT / "tests")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


@cache
def warm_python() -> WarmPython:
    """Returns the process that this one forks programs from."""
    python = WarmPython(environment())
    atexit.register(python.close)
    return python


def run_python(
    code: str, *arguments: str, check: bool = True, stdin: bytes | int | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Runs `code` in a new interpreter, and asserts that it succeeds unless `check` is false."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        env=environment(),
        capture_output=True,
        timeout=TIMEOUT,
        **({"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}),
    )
    if check:
        assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done


def fork_python(
    code: str, *arguments: object, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """As :func:`run_python`, but in a process that has torch and the package, so in less time."""
    done = warm_python().run(["-c", code, *map(str, arguments)], environment(), TIMEOUT)
    assert done.returncode == 0 or not check, done.stderr
    return done


def run_example(folder: Path, name: str, *arguments: str, timeout: int = TIMEOUT) -> str:
    """Runs an example in `folder`, and returns what it prints."""
    given = environment() | {"TMPDIR": str(folder)}
    # The compiler would make them again, for one program, in this folder.
    given["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"
    program = [str(ROOT / "examples" / name), *arguments]
    done = warm_python().run(program, given, timeout, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fork(child: Callable[[], None]) -> int:
    """Forks and runs `child`. The child process exits with 0, or with 1 if `child` raised."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        # The threads that torch started do not exist in a fork.
        torch.set_num_threads(1)
        child()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait(pid: int) -> int:
    """Waits for a fork. Returns its exit status, or minus the number of the fatal signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


TICK = 0.05


@contextmanager
def ticking() -> Iterator[Callable[[], int]]:
    """A clock with ticks of 50 ms, for tests on a busy machine: it counts how often a thread that
    sleeps for one tick has woken up, so it slows down as everything else does."""
    count, stop = 0, False

    def tick() -> None:
        nonlocal count
        while not stop:
            time.sleep(TICK)
            count += 1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield lambda: count
    finally:
        stop = True
        thread.join()


def _free(thread: threading.Thread, fifo: str, flags: int) -> None:
    """Ends a thread whose peer never came, even if it has not opened the FIFO yet."""
    end = time.monotonic() + TIMEOUT
    while thread.is_alive() and time.monotonic() < end:
        os.close(os.open(fifo, flags | os.O_NONBLOCK))
        thread.join(0.01)
    assert not thread.is_alive()


@contextmanager
def feed(fifo: str, data: bytes) -> Iterator[None]:
    """Creates a FIFO, and a thread that writes `data` to it once a reader opens it."""
    os.mkfifo(fifo)

    def write() -> None:
        try:
            with open(fifo, "wb", buffering=0) as stream:
                view = memoryview(data)
                while view:
                    view = view[stream.write(view) :]
        except BrokenPipeError:
            pass  # the reader closed its end

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        _free(writer, fifo, os.O_RDONLY)


class Drain:
    """A FIFO, and a thread that reads everything from it."""

    def __init__(self, fifo: str) -> None:
        self.data = b""
        self._fifo = fifo
        os.mkfifo(fifo)
        self._reader = threading.Thread(target=self._read)

    def _read(self) -> None:
        with open(self._fifo, "rb") as stream:
            self.data = stream.read()

    def __enter__(self) -> Drain:
        self._reader.start()
        return self

    def wait(self) -> None:
        self._reader.join(TIMEOUT)
        assert not self._reader.is_alive()

    def __exit__(self, *_: object) -> None:
        _free(self._reader, self._fifo, os.O_RDWR)
