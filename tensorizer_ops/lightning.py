"""Checkpoints of Lightning as files of tensors, without pickle.

Works with the package ``lightning`` and with ``pytorch_lightning``, whose classes are different.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping
from typing import Any

import torch

from tensorizer_ops import checkpoint as checkpoints, errors
from tensorizer_ops._base.arguments import checked, wrong
from tensorizer_ops._base.option_uses import for_loads, for_saves
from tensorizer_ops._base.options import Hashes, Options, Verify, as_text, kept

__all__ = ["TensorizerCheckpointIO"]

_INSTALLED = [
    name for name in ("lightning", "lightning_fabric") if importlib.util.find_spec(name) is not None
]
if not _INSTALLED:
    raise ImportError("tensorizer_ops.lightning needs lightning or pytorch-lightning")


def _base(package: str) -> Any:
    fabric = "lightning.fabric" if package == "lightning" else package
    return importlib.import_module(f"{fabric}.plugins.io.checkpoint_io").CheckpointIO


class TensorizerCheckpointIO(*map(_base, _INSTALLED)):  # type: ignore[misc]
    """Saves and loads the checkpoints of a ``Trainer`` or of ``Fabric``: give it as a plugin.

    ::

        trainer = Trainer(plugins=[TensorizerCheckpointIO()])

    The files are those of :func:`tensorizer_ops.checkpoint.save`, whatever their names.
    What only pickle could save, for example an object among the hyperparameters, is a
    ``TypeError`` that says where it is.

    Args:
        hashes, threads: as for :func:`tensorizer_ops.save`.
        verify: as for :func:`tensorizer_ops.load`.
        options: of :func:`tensorizer_ops.save` and :func:`tensorizer_ops.load`, which take what
            applies to them.
    """

    @checked
    def __init__(
        self,
        *,
        hashes: Hashes = "chunked",
        verify: Verify = "none",
        threads: int = 0,
        options: Options | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= threads <= 1024:
            raise errors.InvalidArgument(
                f"threads is {threads}, and must be from 0 (every CPU) to 1024"
            )
        self._hashes: Hashes = hashes
        self._verify: Verify = verify
        self._threads = threads
        self._options = kept(options)

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | os.PathLike[str],
        storage_options: Options | None = None,
    ) -> None:
        """Save a checkpoint; ``storage_options`` are added to the options of the plugin."""
        # Lightning chooses the name, which ends with .ckpt.
        options = {"format": "tensors", **self._options, **as_text(storage_options)}
        checkpoints.save(
            path,
            checkpoint,
            group=False,  # Lightning's strategies decide which ranks call this
            hashes=self._hashes,
            threads=self._threads,
            options=for_saves(options),
        )

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: torch.device | str | int | None = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Load a checkpoint onto a device, by default the CPU.

        Nothing in the file is executed, so ``weights_only`` makes no difference.
        """
        if callable(map_location) or isinstance(map_location, Mapping):
            raise wrong("map_location", map_location, "a device or None")
        loaded: dict[str, Any] = checkpoints.load(
            path,
            device="cpu" if map_location is None else map_location,
            verify=self._verify,
            threads=self._threads,
            options=for_loads(self._options),
        )
        return loaded

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a checkpoint if it exists, with ``fsspec``, as Lightning does."""
        from fsspec.core import url_to_fs

        filesystem, place = url_to_fs(os.fspath(path))
        if filesystem.exists(place):
            filesystem.rm(place)
