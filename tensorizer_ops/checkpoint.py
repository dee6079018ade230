"""Training checkpoints: nested states of models and optimizers, saved and loaded without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import checked
from tensorizer_ops._base.file_objects import label
from tensorizer_ops._base.nested import DAMAGE, METADATA_KEY, damage, flattened, rebuilt
from tensorizer_ops._base.options import Hashes, Metadata, Options, Verify, texts_of
from tensorizer_ops._base.progress import Progress
from tensorizer_ops._base.targets import Sink, Source, Target
from tensorizer_ops._front.background import Save, save_async
from tensorizer_ops._front.load_save import save as save_tensors
from tensorizer_ops._front.reader import Reader

if TYPE_CHECKING:
    from tensorizer_ops._dcp.functions import async_save, load, save
    from tensorizer_ops._dcp.planners import JsonLoadPlanner, JsonSavePlanner
    from tensorizer_ops._dcp.storage import TensorizerStorageReader, TensorizerStorageWriter

__all__ = [
    "JsonLoadPlanner",
    "JsonSavePlanner",
    "TensorizerStorageReader",
    "TensorizerStorageWriter",
    "async_save",
    "load",
    "load_checkpoint",
    "save",
    "save_checkpoint",
    "save_checkpoint_async",
]

# Imported on first use, because torch.distributed.checkpoint takes long to import.
_LATER = {
    "JsonLoadPlanner": "planners",
    "JsonSavePlanner": "planners",
    "TensorizerStorageReader": "storage",
    "TensorizerStorageWriter": "storage",
    "async_save": "functions",
    "load": "functions",
    "save": "functions",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"tensorizer_ops._dcp.{_LATER[name]}"), name)


@checked
def save_checkpoint(
    uri: Sink,
    state: Mapping[Any, Any],
    *,
    hashes: Hashes = "chunked",
    threads: int = 0,
    options: Options | None = None,
    metadata: Metadata | None = None,
    progress: Progress | None = None,
) -> None:
    """Save a nested state, such as ``{"model": …, "optimizer": …, "epoch": 3}``.

    It may hold tensors, dicts, lists, tuples, texts, numbers, ``bytes``, ``None``, and torch's
    dtypes, devices and sizes: all that ``state_dict()`` of modules, optimizers and schedulers
    returns. Keys may be anything of that but tensors. Parameters come back as tensors, a
    ``defaultdict`` as a dict, and numbers of NumPy as those of Python.

    A tensor that is in it twice is saved once, under the first name; views of a tensor are saved as
    tensors of their own. The file is one of tensors, which every function of this package can read,
    and the rest is a text in its metadata.

    Args:
        uri, hashes, threads, options, progress: as for :func:`tensorizer_ops.save`.
        state: what to save.
        metadata: texts to store as well.

    Raises:
        TypeError: something in the state would need pickle. The message says where it is.
    """
    tensors, texts = _parts(state, metadata)
    save_tensors(
        uri,
        tensors,
        hashes=hashes,
        threads=threads,
        options=options,
        metadata=texts,
        progress=progress,
    )


@checked
def save_checkpoint_async(
    uri: Target,
    state: Mapping[Any, Any],
    *,
    hashes: Hashes = "chunked",
    threads: int = 1,
    options: Options | None = None,
    metadata: Metadata | None = None,
    progress: Progress | None = None,
) -> Save:
    """Take a snapshot of a nested state and save it in the background.

    Does for :func:`save_checkpoint` what :func:`tensorizer_ops.save_async` does for
    :func:`tensorizer_ops.save`, and returns the same future.

    Args:
        uri, threads, options, progress: as for :func:`tensorizer_ops.save_async`.
        state, hashes, metadata: as for :func:`save_checkpoint`.
    """
    tensors, texts = _parts(state, metadata)
    return save_async(
        uri,
        tensors,
        hashes=hashes,
        threads=threads,
        options=options,
        metadata=texts,
        progress=progress,
    )


def _parts(
    state: Mapping[Any, Any], metadata: Metadata | None
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors and the texts that a state is saved as."""
    tensors, text = flattened(state)
    kept = texts_of(metadata) or {}
    if METADATA_KEY in kept:
        raise errors.InvalidArgument(f"the metadata has {METADATA_KEY!r}, which holds the state")
    return tensors, {**kept, METADATA_KEY: text}


@checked
def load_checkpoint(
    uri: Source,
    *,
    device: torch.device | str | int | None = None,
    verify: Verify = "none",
    copy: bool = False,
    threads: int = 0,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Any:
    """Load what :func:`save_checkpoint` has saved.

    Safe for files of strangers: nothing in the file is executed.

    Args:
        uri, verify, copy, threads, options, progress: as for :func:`tensorizer_ops.load`.
        device: the device of all tensors; torch's default device if omitted.

    Raises:
        ValueError: the file is not a checkpoint, or is damaged.
    """
    with Reader(uri, device=device, options=options, threads=threads, copy=copy) as reader:
        text = reader.metadata().get(METADATA_KEY)
        if text is None:
            raise errors.InvalidFormat(
                f"{label(uri)} has tensors and no nested state: load it with tensorizer_ops.load()"
            )
        tensors = reader.load(verify=verify, progress=progress)
    try:
        return rebuilt(text, tensors)
    except DAMAGE as error:
        raise errors.InvalidFormat(
            f"{label(uri)}: the nested state is damaged: {damage(error)}"
        ) from error
