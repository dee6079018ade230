"""``torch.distributed.checkpoint``'s functions with the storage and planners of this package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from torch.distributed import ProcessGroup
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

from tensorizer_ops._dcp.planners import JsonLoadPlanner, JsonSavePlanner
from tensorizer_ops._dcp.storage import TensorizerStorageReader, TensorizerStorageWriter

_Storage = TypeVar("_Storage", StorageWriter, StorageReader)


def save(
    state_dict: Mapping[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: StorageWriter | None = None,
    planner: SavePlanner | None = None,
    process_group: ProcessGroup | None = None,
    no_dist: bool = False,
) -> Metadata:
    """Save the state of all ranks, as ``torch.distributed.checkpoint.save`` does.

    It is that function with :class:`TensorizerStorageWriter` and :class:`JsonSavePlanner`, so
    nothing is pickled into the checkpoint.

    Args:
        state_dict: the state of this rank: tensors, DTensors, and whatever else
            :func:`save_checkpoint` takes, in dicts with ``str`` as keys.
        checkpoint_id: a folder, ``s3://bucket/prefix`` or ``redis://host/prefix``.
        storage_writer: writes the checkpoint; pass one for options, hashes and threads.
        planner: decides which rank writes what.
        process_group: the ranks; all ranks by default.
        no_dist: whether this process saves alone.

    Raises:
        TypeError: something in the state would need pickle.
        CheckpointException: torch's error for failures of ranks, with the error of each.
    """
    saved: Metadata = state_dict_saver.save(
        dict(state_dict),
        checkpoint_id=checkpoint_id,
        storage_writer=_placed(storage_writer or TensorizerStorageWriter(), checkpoint_id),
        planner=planner or JsonSavePlanner(),
        process_group=process_group,
        no_dist=no_dist,
    )
    return saved


def async_save(
    state_dict: Mapping[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: StorageWriter | None = None,
    planner: SavePlanner | None = None,
    process_group: ProcessGroup | None = None,
    async_stager: AsyncStager | None = None,
    no_dist: bool = False,
) -> Future[Any] | state_dict_saver.AsyncSaveResponse:
    """Copy the state of all ranks, and save it in the background.

    It is ``torch.distributed.checkpoint.async_save`` with the defaults of :func:`save`. Changes to
    the state after the call do not affect the checkpoint. Pass the same writer to all saves, so
    that they use the same memory.

    Args:
        state_dict, checkpoint_id, planner, process_group, no_dist: as for :func:`save`.
        storage_writer: writes the checkpoint, and copies the state.
        async_stager: copies the state in place of the writer.

    Returns:
        The future that torch returns; its ``result()`` raises what :func:`save` would.
    """
    return state_dict_saver.async_save(
        dict(state_dict),
        checkpoint_id=checkpoint_id,
        storage_writer=_placed(storage_writer or TensorizerStorageWriter(), checkpoint_id),
        planner=planner or JsonSavePlanner(),
        process_group=process_group,
        async_stager=async_stager,
        no_dist=no_dist,
    )


def load(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_reader: StorageReader | None = None,
    planner: LoadPlanner | None = None,
    process_group: ProcessGroup | None = None,
    no_dist: bool = False,
) -> None:
    """Fill the state of all ranks, as ``torch.distributed.checkpoint.load`` does.

    It is that function with :class:`TensorizerStorageReader` and :class:`JsonLoadPlanner`, so
    nothing in the checkpoint can run code. The mesh may be another one than that of the save.

    Args:
        state_dict: the state to fill. Tensors are filled in place, other values replaced.
        checkpoint_id: as for :func:`save`, or ``https://``.
        storage_reader: reads the checkpoint; pass one for options, threads and ``verify``.
        planner: decides which rank reads what.
        process_group, no_dist: as for :func:`save`.

    Raises:
        CheckpointException: torch's error for failures of ranks, with the error of each.
    """
    state_dict_loader.load(
        state_dict,
        checkpoint_id=checkpoint_id,
        storage_reader=_placed(storage_reader or TensorizerStorageReader(), checkpoint_id),
        planner=planner or JsonLoadPlanner(),
        process_group=process_group,
        no_dist=no_dist,
    )


def _placed(storage: _Storage, checkpoint_id: str | os.PathLike[str] | None) -> _Storage:
    """Return a storage; raise here, and not on each rank of torch, if it lacks a place."""
    if isinstance(storage, TensorizerStorageWriter | TensorizerStorageReader):
        storage.place_of(checkpoint_id)
    return storage
