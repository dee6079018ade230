"""``verify`` for folders with checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.command import run
from support.folders import save_folder
from tensorizer_ops import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def test_verify_a_chain_of_checkpoints(tmp_path: Path) -> None:
    chain = checkpoint.Chain(tmp_path / "run")
    for step in (1, 2):
        chain.save(step, {"w": torch.ones(1000)})
    done = run("verify", tmp_path / "run")
    assert done.stdout.count(": OK") == 4
    one = Path(chain.steps()[0].uri)
    one.write_bytes(one.read_bytes()[:-1000])
    done = run("verify", tmp_path / "run", status=1)
    assert done.stdout.count(": OK") == 3
    assert one.name in done.stderr


def test_verify_a_checkpoint_of_many_ranks(tmp_path: Path) -> None:
    save_folder(tmp_path, {"w": torch.ones(1000)})
    assert run("verify", tmp_path).stdout.count(": OK") == 2
    (tmp_path / "checkpoint.tensors").unlink()
    assert "checkpoint.tensors" in run("verify", tmp_path, status=1).stderr
