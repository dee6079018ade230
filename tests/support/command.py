"""Runs the command ``tensorizer-ops`` in a process of its own, also on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time

import torch

from support.process import TIMEOUT, environment, warm_python

# What the fixture `model` has.
TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.int64)}

COMMAND = [sys.executable, "-W", "ignore", "-m", "tensorizer_ops"]


def run(*arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs the command without a terminal and without input, and asserts its exit status."""
    done = warm_python().run([*COMMAND[-2:], *map(str, arguments)], environment(), TIMEOUT)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


class Terminal:
    """The command on a terminal of its own, as its foreground process."""

    def __init__(self, *arguments: object) -> None:
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, [*COMMAND, *map(str, arguments)], environment())
        # 24 lines of 80 columns; without a size, no bar is drawn.
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> None:
        """Reads what the command shows until `text` is in it."""
        end = time.monotonic() + TIMEOUT
        while text not in self.shown:
            assert time.monotonic() < end and self._read(), self.shown

    def end(self) -> int:
        """Reads the rest, and returns the exit status."""
        while self._read():
            pass
        os.close(self._master)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bool:
        try:
            got = os.read(self._master, 65536)
        except OSError:  # the process has closed its side
            return False
        self.shown += got.decode(errors="replace")
        return bool(got)
