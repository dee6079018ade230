"""Checkpoints in folders, which one process writes as one of many ranks would."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from torch.distributed import checkpoint as dcp

from tensorizer_ops.checkpoint import JsonSavePlanner, TensorizerStorageWriter


def save_folder(uri: str | Path, state: Mapping[str, Any], **how: Any) -> None:
    """Saves a state; the keywords are those of the writer."""
    writer = TensorizerStorageWriter(uri, **how)
    dcp.save(dict(state), storage_writer=writer, planner=JsonSavePlanner(), no_dist=True)


def save_folder_async(
    uri: str | Path, state: Mapping[str, Any], writer: TensorizerStorageWriter | None = None
) -> Future[Any]:
    saving = dcp.async_save(
        dict(state),
        checkpoint_id=uri,
        storage_writer=writer or TensorizerStorageWriter(),
        planner=JsonSavePlanner(),
        no_dist=True,
    )
    assert isinstance(saving, Future)
    return saving
