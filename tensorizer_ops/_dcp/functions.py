"""Saves of nested states by all ranks, and loads into a state, from folders and from files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan

from tensorizer_ops import errors
from tensorizer_ops._base.devices import first_use, named_device
from tensorizer_ops._base.file_objects import label
from tensorizer_ops._base.nested import is_stateful, naming_damage, own_states
from tensorizer_ops._base.options import Options, Verify
from tensorizer_ops._base.targets import Target
from tensorizer_ops._dcp.one_file import OneFile
from tensorizer_ops._dcp.paths import empty_dicts, nested
from tensorizer_ops._dcp.planners import JsonLoadPlanner, JsonSavePlanner
from tensorizer_ops._dcp.staging import Copies
from tensorizer_ops._dcp.storage import TensorizerStorageReader, TensorizerStorageWriter
from tensorizer_ops._front.reader import Reader

# The memory of snapshots stays for later ones: new memory costs more than the copy.
_COPIES = Copies()
_Read = Callable[[LoadPlan, JsonLoadPlanner], object]


def save(
    writer: TensorizerStorageWriter, state: Mapping[Any, Any], group: dist.ProcessGroup | None
) -> None:
    """Save the state of all ranks of a group."""
    state_dict_saver.save(
        dict(state), storage_writer=writer, planner=JsonSavePlanner(), process_group=group
    )


def save_async(
    writer: TensorizerStorageWriter, state: Mapping[Any, Any], group: dist.ProcessGroup | None
) -> Future[None]:
    """Copy the state of all ranks of a group, and save it in the background."""
    writer.copies = _COPIES
    saving = state_dict_saver.async_save(
        dict(state), storage_writer=writer, planner=JsonSavePlanner(), process_group=group
    )
    done: Future[None] = Future()
    done.set_running_or_notify_cancel()

    def pass_on(saved: Future[Any]) -> None:
        if error := saved.exception():
            done.set_exception(error)
        else:
            done.set_result(None)

    assert isinstance(saving, Future)  # the writer copies before torch returns
    saving.add_done_callback(pass_on)
    return done


def load_folder(
    uri: Target,
    state: dict[Any, Any] | None,
    device: torch.device | str | int | None,
    verify: Verify,
    threads: int,
    options: Options | None,
) -> dict[Any, Any]:
    """Fill a state from what ranks have saved, or return all of it."""
    reader = TensorizerStorageReader(uri, verify=verify, threads=threads, options=options)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    if state is None:
        where = torch.get_default_device() if device is None else named_device(device)
        first_use(where)
        if where.type == "meta":
            raise errors.InvalidArgument("device is meta, and a folder is loaded with its values")
        reader._check_places()
        state = _empty(metadata, label(uri), where)
    _fill(state, metadata, reader.read_data)
    return state


def load_file(
    reader: Reader, where: str, text: str, state: dict[Any, Any], verify: Verify, threads: int
) -> dict[Any, Any]:
    """Fill a state from the tensors of a file, and the text that says where they belong."""
    file = OneFile(reader, where, text, verify, threads)
    _fill(state, file.metadata, file.read_data)
    return state


def _empty(metadata: Metadata, where: str, device: torch.device) -> dict[Any, Any]:
    """Return a state with the tensors of a checkpoint, to be filled."""
    values = {
        name: torch.empty(stored.size, dtype=stored.properties.dtype, device=device)
        if isinstance(stored, TensorStorageMetadata)
        else None
        for name, stored in metadata.state_dict_metadata.items()
    }
    with naming_damage(where):
        return nested(values, metadata.planner_data or {})


def _fill(state: dict[Any, Any], metadata: Metadata, read: _Read) -> None:
    """Fill a state as torch's ``load`` does, but without the other ranks.

    What has ``state_dict()`` and ``load_state_dict()`` is filled by them, as there.
    """
    plain = own_states(state)
    for name in empty_dicts(plain):
        if any(stored.startswith(name + ".") for stored in metadata.state_dict_metadata):
            raise errors.InvalidArgument(
                f"state has nothing in {name!r}, and the checkpoint has: an optimizer has no state "
                "before its first step. Load without a state, or make it with get_state_dict() of "
                "torch.distributed.checkpoint.state_dict"
            )
    planner = JsonLoadPlanner()
    planner.set_up_planner(plain, metadata, True)
    read(planner.create_local_plan(), planner)
    for key, value in state.items():
        if is_stateful(value):
            value.load_state_dict(plain[key])
        else:
            state[key] = plain[key]
