"""Waiting for what another process does, however long a busy machine takes."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

# Seconds after which a wait fails: only for what would never come. Nothing else may depend on it.
LAST_RESORT = 600


def wait_until(
    happened: Callable[[], bool],
    process: subprocess.Popen[bytes] | None = None,
    log: Path | None = None,
) -> None:
    """Block until ``happened()``; fail, with the text of ``log``, if ``process`` ends before."""
    deadline = time.monotonic() + LAST_RESORT
    while not happened():
        ended = process is not None and process.poll() is not None
        if ended or time.monotonic() > deadline:
            text = log.read_text(errors="replace") if log else ""
            raise AssertionError(f"{'the process ended' if ended else 'in vain'}: {text}")
        time.sleep(0.02)


def listens(port: int) -> bool:
    """Return whether something accepts connections on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
