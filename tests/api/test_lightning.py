"""The plugin for checkpoints of Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.samples import same

pl = pytest.importorskip("pytorch_lightning")
pytestmark = pytest.mark.filterwarnings("ignore")


class Linear(pl.LightningModule):
    def __init__(self, rate: float = 0.01, **others: Any) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(8, 2)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        return loss

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.arange(64.0).view(8, 8) / 64, batch_size=4)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def trainer(folder: Path, epochs: int, plugin: Any = None) -> Any:
    keep = pl.callbacks.ModelCheckpoint(folder / "best", monitor="loss", save_top_k=1)
    return pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=[keep],
        plugins=[] if plugin is None else [plugin],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def new(**others: Any) -> Linear:
    torch.manual_seed(0)
    return Linear(**others)


def test_options_of_saves_and_of_loads(tmp_path: Path) -> None:
    from tensorizer_ops.lightning import TensorizerCheckpointIO

    plugin = TensorizerCheckpointIO(options={"fsync": True, "kdf_limit": "3,1073741824"})
    plugin.save_checkpoint({"w": torch.ones(3)}, tmp_path / "a.ckpt")
    assert same(plugin.load_checkpoint(tmp_path / "a.ckpt")["w"], torch.ones(3))


def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    from tensorizer_ops.lightning import TensorizerCheckpointIO

    straight = new()
    trainer(tmp_path / "theirs", 4).fit(straight)

    plugin = TensorizerCheckpointIO(verify="all")
    first = trainer(tmp_path, 2, plugin)
    first.fit(new())
    first.save_checkpoint(tmp_path / "last.ckpt")
    assert b"PK" not in (tmp_path / "last.ckpt").read_bytes()[:4]
    resumed = new()
    again = trainer(tmp_path, 4, TensorizerCheckpointIO(verify="all"))
    again.fit(resumed, ckpt_path=tmp_path / "last.ckpt")
    assert again.global_step == 8
    for name, tensor in straight.state_dict().items():
        assert same(resumed.state_dict()[name], tensor)
    # One of several checkpoints is kept: the others were removed.
    (best,) = (tmp_path / "best").iterdir()
    assert Path(again.checkpoint_callback.best_model_path) == best
    loaded = tensorizer_ops.load(best, names=["state_dict.layer.weight"])
    assert list(loaded) == ["state_dict.layer.weight"]
    assert plugin.load_checkpoint(best)["hyper_parameters"] == {"rate": 0.01}


def test_what_a_plugin_refuses(tmp_path: Path) -> None:
    from tensorizer_ops.lightning import TensorizerCheckpointIO

    with pytest.raises(ValueError, match="threads is -1"):
        TensorizerCheckpointIO(threads=-1)
    plugin = TensorizerCheckpointIO(options={"memory_ceiling": 1 << 20})
    path = tmp_path / "m.ckpt"
    with pytest.raises(TypeError, match=r"\['hyper_parameters'\]\['seen'\] is .*only pickle"):
        plugin.save_checkpoint({"hyper_parameters": {"seen": {1, 2}}}, path)
    assert not path.exists()
    with pytest.raises(ValueError, match="no_such_option"):
        plugin.save_checkpoint({"a": 1}, path, storage_options={"no_such_option": 1})
    with pytest.raises(TypeError, match="options is int"):
        plugin.save_checkpoint({"a": 1}, path, storage_options=5)
    plugin.save_checkpoint({"a": torch.ones(2)}, path)
    assert plugin.load_checkpoint(path, map_location="cpu", weights_only=False)["a"].sum() == 2
    with pytest.raises(TypeError, match="map_location is function"):
        plugin.load_checkpoint(path, map_location=lambda storage, place: storage)
    plugin.remove_checkpoint(path)
    plugin.remove_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        plugin.load_checkpoint(path)
