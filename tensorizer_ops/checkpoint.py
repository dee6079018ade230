"""Training checkpoints: nested states of models and optimizers, saved and loaded without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import checked
from tensorizer_ops._base.file_objects import label
from tensorizer_ops._base.options import Hashes, Metadata, Options, Verify
from tensorizer_ops._base.progress import Progress
from tensorizer_ops._base.targets import Sink, Source, Target
from tensorizer_ops._dcp import FILE, one_process
from tensorizer_ops._dcp.old_names import old_name, takes_old_order
from tensorizer_ops._distributed.together import given_group, is_alone

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from tensorizer_ops._chain.chain import Chain, Loaded, PassedOver, Step
    from tensorizer_ops._dcp.hugging_face import HuggingFaceStorageReader, HuggingFaceStorageWriter
    from tensorizer_ops._dcp.planners import JsonLoadPlanner, JsonSavePlanner
    from tensorizer_ops._dcp.storage import TensorizerStorageReader, TensorizerStorageWriter
else:  # importing them takes long
    ProcessGroup = DeviceMesh = Any

__all__ = [
    "Chain",
    "HuggingFaceStorageReader",
    "HuggingFaceStorageWriter",
    "JsonLoadPlanner",
    "JsonSavePlanner",
    "Loaded",
    "PassedOver",
    "Step",
    "TensorizerStorageReader",
    "TensorizerStorageWriter",
    "consolidate",
    "load",
    "save",
    "save_async",
]

# Imported on first use, because torch.distributed.checkpoint takes long to import.
_LATER = {
    "HuggingFaceStorageReader": "hugging_face",
    "HuggingFaceStorageWriter": "hugging_face",
    "JsonLoadPlanner": "planners",
    "JsonSavePlanner": "planners",
    "TensorizerStorageReader": "storage",
    "TensorizerStorageWriter": "storage",
}


_OF_CHAINS = ("Chain", "Loaded", "PassedOver", "Step")


def __getattr__(name: str) -> Any:
    if name in _OF_CHAINS:
        return getattr(import_module("tensorizer_ops._chain.chain"), name)
    if name in _LATER:
        return getattr(import_module(f"tensorizer_ops._dcp.{_LATER[name]}"), name)
    if old := old_name(name, globals()):
        return old
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@takes_old_order
@checked
def save(
    uri: Sink,
    state: Mapping[Any, Any],
    group: ProcessGroup | DeviceMesh | Literal[False] | None = None,
    *,
    hashes: Hashes = "chunked",
    threads: int = 0,
    options: Options | None = None,
    metadata: Metadata | None = None,
    progress: Progress | None = None,
) -> None:
    """Save a nested state, such as ``{"model": …, "optimizer": …, "step": 3}``, without pickle.

    Without ``torch.distributed``, one process writes one file. In a job, where
    ``torch.distributed`` is initialized, also with one rank, **all ranks must call this**, with the
    same arguments but for the state: they write a folder. ``group=False`` lets one rank of a job
    save what it has, alone, into one file.

    A state may hold tensors, dicts, lists, tuples, texts, numbers, ``bytes``, ``None``, and torch's
    dtypes, devices and sizes: all that ``state_dict()`` of modules, optimizers and schedulers
    returns. These may themselves be values of the state. Keys may be anything of that but tensors.
    Parameters come back as tensors, a ``defaultdict`` as a dict, and numbers of NumPy as those of
    Python.

    The file is one of tensors, which every function of this package can read, and the rest is a
    text in its metadata. A tensor that is in the state twice is saved once, under the first name;
    views of a tensor are saved as tensors of their own.

    The folder has at least one such file for each rank, with the tensors and the shards of DTensors
    that this rank has, and ``checkpoint.tensors``, which is written last and lists them: until then
    an earlier checkpoint in the folder is whole. Keys are texts or integers, and tensors are not in
    tuples. This is ``torch.distributed.checkpoint.save`` with :class:`TensorizerStorageWriter` and
    :class:`JsonSavePlanner`, which can also be passed to that function.

    Args:
        uri: of one file, as for :func:`tensorizer_ops.save`; of many ranks a folder that they
            share, ``s3://bucket/prefix`` or ``redis://host/prefix``.
        state: what to save; of many ranks, what this rank has.
        group: the ranks; all ranks by default. A mesh stands for its ranks. ``False``: this process
            alone.
        hashes, threads, options: as for :func:`tensorizer_ops.save`. In local folders, ``fsync`` is
            ``"true"`` if the options do not say otherwise.
        metadata: texts to store as well: in the file, or in ``checkpoint.tensors``.
        progress: as for :func:`tensorizer_ops.save`; of many ranks, what this rank writes.

    Raises:
        TypeError: something in the state would need pickle. The message says where it is.
        CheckpointException: torch's error for failures of ranks, with the error of each.
    """
    if is_alone(group):
        one_process.save(uri, state, hashes, threads, options, metadata, progress)
    else:
        writer = _many_ranks().writer(uri, hashes, threads, options, metadata, progress)
        _many_ranks().save(writer, state, given_group(group))


@checked
def save_async(
    uri: Target,
    state: Mapping[Any, Any],
    group: ProcessGroup | DeviceMesh | Literal[False] | None = None,
    *,
    hashes: Hashes = "chunked",
    threads: int = 1,
    options: Options | None = None,
    metadata: Metadata | None = None,
    progress: Progress | None = None,
) -> Future[None]:
    """Take a snapshot of a nested state and save it in the background, as :func:`save` does.

    Changes to the state after the call do not affect the checkpoint. The snapshot takes as much
    memory as the tensors until the save is done; of many ranks, it stays for the next snapshot.
    The program does not exit before the save has ended.

    Args:
        uri, state, hashes, options, metadata: as for :func:`save`.
        group: as for :func:`save`, with a backend for the CPU (``"gloo"``). Training must not use
            the same group meanwhile.
        threads: as for :func:`tensorizer_ops.save_async`.
        progress: as for :func:`save`, called from another thread.

    Returns:
        A future, whose ``result()`` raises what :func:`save` would; of one file, a
        :class:`tensorizer_ops.Save`. Await it before the next save to the same place or on the same
        group.
    """
    if is_alone(group):
        return one_process.save_async(uri, state, hashes, threads, options, metadata, progress)
    writer = _many_ranks().writer(uri, hashes, threads, options, metadata, progress)
    saving: Future[None] = _many_ranks().save_async(writer, state, given_group(group))
    return saving


@takes_old_order
@checked
def load(
    uri: Source,
    state: dict[Any, Any] | None = None,
    *,
    device: torch.device | str | int | None = None,
    verify: Verify = "none",
    copy: bool = False,
    threads: int = 0,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Any:
    """Load what :func:`save` has saved, whatever the number of ranks: a file or a folder.

    Safe for files of strangers: nothing in a checkpoint is executed. Ranks need not call this
    together: each reads what it needs.

    Without a state, all of the checkpoint is returned. A state is filled as
    ``torch.distributed.checkpoint.load`` does: tensors in place, DTensors with the shards of this
    rank, whatever the mesh of the save, and other values are replaced. Modules and optimizers in it
    take theirs by ``load_state_dict()``. What the state does not have is not read. An optimizer has
    no state before its first step, so make that with ``get_state_dict()`` of
    ``torch.distributed.checkpoint.state_dict``.

    Args:
        uri: where it was saved; folders also on web servers.
        state: what to fill.
        device: without a state, the device of all tensors; torch's default device if omitted.
        verify, threads, options: as for :func:`tensorizer_ops.load`.
        copy: as for :func:`tensorizer_ops.load`. Tensors from a folder are always in own memory.
        progress: as for :func:`tensorizer_ops.load`.

    Returns:
        The state.

    Raises:
        ValueError: there is no checkpoint, or it is damaged.
        RuntimeError: the checkpoint lacks something that is in the state.
    """
    return one_process.load(uri, state, device, verify, copy, threads, options, progress)


@checked
def consolidate(
    uri: Target,
    target: Target,
    *,
    prefix: str = "",
    verify: Verify = "all",
    hashes: Hashes = "chunked",
    threads: int = 0,
    source_options: Options | None = None,
    target_options: Options | None = None,
    progress: Progress | None = None,
) -> None:
    """Write what many ranks have saved as one file, or as a folder of Hugging Face.

    One process reads the parts of some tensors, writes these, and goes on, so it takes little more
    memory than the largest tensor. A ``.tensors`` file is what :func:`save` of one process writes,
    and :func:`load` returns the same state. Safetensors files have the tensors alone, under the
    names that they have there: the keys on the way to them, joined by dots.

    Args:
        uri: the folder that :func:`save` has written, as for :func:`load`.
        target: the file to write, whose name decides about the format as in
            :func:`tensorizer_ops.save`. If it ends in a slash, or is a folder on this machine:
            ``model.safetensors`` in it, or shards and ``model.safetensors.index.json``.
        prefix: the beginning of the names of the tensors to write, such as ``"model."``, which is
            taken away. A file then has tensors alone.
        verify: which hashes to compare, as for :func:`tensorizer_ops.load`.
        hashes, threads: as for :func:`tensorizer_ops.save`.
        source_options, target_options: as for loads and for saves. ``max_shard_size`` is the bytes
            of tensors in each file of a folder, 5 GB by default.
        progress: called with the bytes of tensors written so far, and those of all.

    Raises:
        ValueError: there is no checkpoint of many ranks, or it is damaged; no name begins with the
            prefix; or the folder has a model.
    """
    if not one_process.is_folder(uri, source_options):
        raise errors.InvalidArgument(
            f"{label(uri)} has no {FILE!r}, so it is no checkpoint of many ranks: convert() copies "
            "files"
        )
    how = (prefix, verify, hashes, threads, source_options, target_options, progress)
    import_module("tensorizer_ops._dcp.consolidated").consolidate(uri, target, *how)


def _many_ranks() -> Any:
    return import_module("tensorizer_ops._dcp.functions")
