"""What every test has: the ops, and a place of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops  # noqa: F401  (loads the ops)


def _descriptors() -> set[str]:
    return {
        os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{name}")
    }


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "model.tensors")


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    """A directory in memory (tmpfs), of this test alone."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def nothing_left_open(tmp_path: Path) -> Iterator[None]:
    """No test may end with a file of its directory still open in this process."""
    yield
    left = [target for target in _descriptors() if target.startswith(str(tmp_path) + "/")]
    assert not left


@pytest.fixture(autouse=True)
def torch_defaults() -> Iterator[None]:
    yield
    assert torch.get_default_dtype() == torch.float32
    torch.set_default_device(None)
