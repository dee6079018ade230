"""Saves of nested states by all ranks, and loads into a state, from folders and from files."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import wrong
from tensorizer_ops._base.devices import first_use, named_device
from tensorizer_ops._base.file_objects import label
from tensorizer_ops._base.folder import Folder
from tensorizer_ops._base.nested import check_wanted, is_stateful, naming_damage, own_states
from tensorizer_ops._base.options import Hashes, Metadata as Texts, Options, Verify, as_text
from tensorizer_ops._base.progress import Progress, reported
from tensorizer_ops._base.targets import Target, place_of
from tensorizer_ops._dcp.one_file import OneFile
from tensorizer_ops._dcp.paths import empty_dicts, nested
from tensorizer_ops._dcp.planners import JsonLoadPlanner, JsonSavePlanner
from tensorizer_ops._dcp.staging import Copies
from tensorizer_ops._dcp.storage import TensorizerStorageReader, TensorizerStorageWriter
from tensorizer_ops._front.load_save import save as save_tensors
from tensorizer_ops._front.reader import Reader

# The memory of snapshots stays for later ones: new memory costs more than the copy.
_COPIES = Copies()
_Read = Callable[[LoadPlan, JsonLoadPlanner], object]


def writer(
    uri: Target,
    hashes: Hashes,
    threads: int,
    options: Options | None,
    metadata: Texts | None,
    progress: Progress | None,
) -> TensorizerStorageWriter:
    """Return what writes the file of a rank; raise for wrong arguments before torch is called."""
    if not isinstance(place_of(uri), str):
        raise wrong("uri", uri, "a path or a URI: many ranks save to a folder")
    Folder(uri, options)
    # An empty file has none of what is saved, and all of its errors but those of a key.
    plain = {k: v for k, v in as_text(options).items() if k not in ("key", "kdf", "plain_digests")}
    save_tensors(io.BytesIO(), {}, hashes=hashes, threads=threads, options=plain, metadata=metadata)
    return TensorizerStorageWriter(
        uri, hashes=hashes, threads=threads, options=options, metadata=metadata, progress=progress
    )


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
    used: Any = group or dist.group.WORLD
    if torch.device("cpu") not in used._device_types:
        raise errors.InvalidArgument(
            "the group has no backend for the CPU, which a save in the background needs: give "
            'group=torch.distributed.new_group(backend="gloo")'
        )
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
    progress: Progress | None,
    wanted: Mapping[str, str] | None = None,
    signed: list[str] | None = None,
) -> dict[Any, Any]:
    """Fill a state from what ranks have saved, or return all of it, as ``one_process.load``."""
    reader = TensorizerStorageReader(uri, verify=verify, threads=threads, options=options)
    metadata = reader.read_metadata()
    check_wanted(reader._current.texts, wanted, label(uri))
    if signed is not None:
        signed.append(reader._signed_content())
    reader.set_up_storage_reader(metadata, True)
    if state is None:
        where = torch.get_default_device() if device is None else named_device(device)
        first_use(where)
        if where.type == "meta":
            raise errors.InvalidArgument("device is meta, and a folder is loaded with its values")
        reader._check_places()
        state = _empty(metadata, label(uri), where)
    _fill(state, metadata, reader.read_data, progress)
    return state


def load_file(
    reader: Reader,
    where: str,
    text: str,
    state: dict[Any, Any],
    verify: Verify,
    threads: int,
    progress: Progress | None,
) -> dict[Any, Any]:
    """Fill a state from the tensors of a file, and the text that says where they belong."""
    file = OneFile(reader, where, text, verify, threads)
    _fill(state, file.metadata, file.read_data, progress)
    return state


class _Counting(JsonLoadPlanner):
    """A planner whose load is a job that reports its progress."""

    def __init__(self) -> None:
        super().__init__()
        self.done = self.total = 0
        self._reader: Any = None  # that is loading
        self._is_cancelled = False

    @contextmanager
    def reading(self, reader: Any) -> Iterator[None]:
        """Count what a reader loads in the block."""
        if self._is_cancelled:
            raise errors.Cancelled("the load was cancelled")
        self._reader = reader
        try:
            yield
        finally:
            self._reader, self.done = None, self.progress()[0]

    def progress(self) -> tuple[int, int]:
        reader = self._reader
        moved = self.done + (0 if reader is None else reader.progress()[0])
        return min(moved, self.total), self.total

    def cancel(self) -> None:
        self._is_cancelled = True
        if (reader := self._reader) is not None:
            reader.cancel()


def _size(item: ReadItem, metadata: Metadata) -> int:
    """Return the bytes of a part; 0 for a value that is no tensor."""
    stored = metadata.state_dict_metadata[item.storage_index.fqn]
    if not isinstance(stored, TensorStorageMetadata):
        return 0
    return math.prod(item.lengths) * stored.properties.dtype.itemsize


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


def _fill(
    state: dict[Any, Any], metadata: Metadata, read: _Read, progress: Progress | None
) -> None:
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
    planner = _Counting()
    planner.set_up_planner(plain, metadata, True)
    plan = planner.create_local_plan()
    planner.total = sum(_size(item, metadata) for item in plan.items)
    with reported(planner, progress):
        read(plan, planner)
        planner.done = planner.total
    for key, value in state.items():
        if is_stateful(value):
            value.load_state_dict(plain[key])
        else:
            state[key] = plain[key]
