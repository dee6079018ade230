"""What the tests of several subcommands start from."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensorizer_ops
from support.command import TENSORS


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.tensors"
    tensorizer_ops.save(path, TENSORS)
    return path
