"""Total time and bytes of all loads of a process, if an environment variable enables it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

enabled = bool(os.environ.get("TENSORIZER_ENABLE_PERF_STATS"))
_lock = threading.RLock()  # reentrant: a signal handler may load
_totals: dict[str, float] = {
    "tensor_to_device_secs": 0.0,
    "tensor_to_device_bytes": 0,
    "file_readinto_secs": 0.0,
    "file_readinto_bytes": 0,
}


@contextmanager
def count_load(reader: Any, device: torch.device) -> Iterator[None]:
    """Add the reader's loads in the block to the totals."""
    if not enabled:
        yield
        return
    before = reader.stats()
    yield
    after = reader.stats()
    read = int(after["bytes"] - before["bytes"])
    with _lock:
        _totals["file_readinto_secs"] += after["seconds"] - before["seconds"]
        _totals["file_readinto_bytes"] += read
        if device.type != "cpu":
            _totals["tensor_to_device_secs"] += after["copy"] - before["copy"]
            _totals["tensor_to_device_bytes"] += read


def get_perf_stats() -> dict[str, float]:
    """Return the seconds and bytes of all loads, and of the copies to devices.

    Raises:
        RuntimeError: ``TENSORIZER_ENABLE_PERF_STATS`` was not set when this module was imported.
    """
    if not enabled:
        raise RuntimeError(
            "performance is not counted: set TENSORIZER_ENABLE_PERF_STATS=1 before Python starts"
        )
    with _lock:
        return dict(_totals)
