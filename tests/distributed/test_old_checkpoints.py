"""Names and orders of arguments of earlier versions: they work, and say what to call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.ranks import run_ranks
from tensorizer_ops import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def test_old_names(tmp_path: Path) -> None:
    path = tmp_path / "c.tensors"
    with pytest.warns(DeprecationWarning, match=r"call checkpoint.save\(uri, state, group=False\)"):
        from tensorizer_ops.checkpoint import save_checkpoint
    with pytest.warns(DeprecationWarning, match=r"checkpoint.save_async\(uri, state, group=False"):
        from tensorizer_ops.checkpoint import save_checkpoint_async
    with pytest.warns(DeprecationWarning, match=r"call checkpoint.load\(uri\)") as caught:
        from tensorizer_ops.checkpoint import load_checkpoint
    assert caught[0].filename == __file__
    save_checkpoint(path, {"w": torch.ones(2), "step": 3}, hashes="crc32", metadata={"by": "me"})
    assert load_checkpoint(path, verify="crc32")["step"] == 3
    save = save_checkpoint_async(path, {"w": torch.ones(3), "step": 4})
    assert save.result() is None and save.progress()[0] > 0
    assert load_checkpoint(path)["step"] == 4


def test_the_old_order(tmp_path: Path) -> None:
    saved = {"w": torch.ones(2), "step": 3}
    with pytest.warns(
        DeprecationWarning, match=r"checkpoint.save\(uri, state\), or torch's"
    ) as caught:
        checkpoint.save(saved, checkpoint_id=tmp_path / "a")  # type: ignore[call-arg]
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=r"call checkpoint.save_async\(uri, state\)"):
        checkpoint.async_save(saved, checkpoint_id=tmp_path / "b", no_dist=True).result()
    writer = checkpoint.TensorizerStorageWriter(tmp_path / "c")
    with pytest.warns(DeprecationWarning):
        checkpoint.save(state_dict=saved, storage_writer=writer, no_dist=True)  # type: ignore[call-arg]
    for name in "abc":
        assert (tmp_path / name / "checkpoint.tensors").is_file()
        state: dict[str, Any] = {"w": torch.zeros(2), "step": 0}
        with pytest.warns(DeprecationWarning, match=r"call checkpoint.load\(uri, state\)"):
            checkpoint.load(state, checkpoint_id=tmp_path / name)  # type: ignore[call-arg]
        assert state["w"].tolist() == [1, 1] and state["step"] == 3


ALONE = """
import warnings
from tensorizer_ops import checkpoint
warnings.simplefilter("ignore")
if rank == 1:
    checkpoint.save_checkpoint(given[0], {"rank": rank})
report(None)
"""


def test_a_rank_saves_alone(tmp_path: Path) -> None:
    run_ranks(tmp_path / "ranks", ALONE, tmp_path / "c.tensors", count=2)
    assert checkpoint.load(tmp_path / "c.tensors") == {"rank": 1}
