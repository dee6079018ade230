"""Saves of nested states by one process, and loads of what any number has saved.

Does not import ``torch.distributed.checkpoint``, which takes long, before that is needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch

from tensorizer_ops import _core, errors
from tensorizer_ops._base.file_objects import label
from tensorizer_ops._base.folder import Folder, unsigned
from tensorizer_ops._base.nested import (
    METADATA_KEY,
    check_wanted,
    flattened,
    naming_damage,
    own_states,
    rebuilt,
    refuse_key,
)
from tensorizer_ops._base.options import Hashes, Metadata, Options, Verify, texts_of
from tensorizer_ops._base.progress import Progress
from tensorizer_ops._base.targets import Sink, Source, Target, local_path, place_of
from tensorizer_ops._dcp import CHAIN, FILE, KEY
from tensorizer_ops._dcp.steps import check_step, step_named
from tensorizer_ops._front.background import Save, save_async as save_tensors_async
from tensorizer_ops._front.load_save import save as save_tensors
from tensorizer_ops._front.reader import Reader
from tensorizer_ops._front.serving import signed_contents


def save(
    uri: Sink,
    state: Mapping[Any, Any],
    hashes: Hashes,
    threads: int,
    options: Options | None,
    metadata: Metadata | None,
    progress: Progress | None,
) -> None:
    """Save a state as one file."""
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


def save_async(
    uri: Target,
    state: Mapping[Any, Any],
    hashes: Hashes,
    threads: int,
    options: Options | None,
    metadata: Metadata | None,
    progress: Progress | None,
) -> Save:
    """Copy a state, and save it as one file in the background."""
    tensors, texts = _parts(state, metadata)
    return save_tensors_async(
        uri,
        tensors,
        hashes=hashes,
        threads=threads,
        options=options,
        metadata=texts,
        progress=progress,
    )


def load(
    uri: Source,
    state: dict[Any, Any] | None,
    device: torch.device | str | int | None,
    verify: Verify,
    copy: bool,
    threads: int,
    options: Options | None,
    progress: Progress | None,
    wanted: Mapping[str, str] | None = None,
    signed: list[str] | None = None,
    of_ranks: bool = False,
) -> Any:
    """Fill a state from a file or a folder, or return all of it.

    ``wanted`` is metadata without which no file is loaded. What differs for other checkpoints that
    are signed is added to ``signed``. ``of_ranks`` says that it is known to be a folder of many
    ranks.
    """
    if state is not None and device is not None:
        raise errors.InvalidArgument("device is for loads without a state, whose tensors have one")
    if of_ranks or is_folder(uri, options):
        how = (device, verify, threads, options, progress, wanted, signed)
        return _many_ranks().load_folder(uri, state, *how)
    path = None if not isinstance(place_of(uri), str) else local_path(uri)  # type: ignore[arg-type]
    if path is not None and os.path.exists(os.path.join(path, CHAIN)):
        raise errors.InvalidArgument(f"{label(uri)} is a chain: load it with checkpoint.Chain()")
    with Reader(uri, device=device, options=options, threads=threads, copy=copy) as reader:
        text = _text_of(reader, label(uri))
        check_wanted(reader.metadata(), wanted, label(uri))
        if isinstance(place := place_of(uri), str):
            check_step(step_named(place), label(uri), reader.metadata())
        if signed is not None:
            signed += signed_contents([reader])
        if state is not None:
            where = label(uri)
            return _many_ranks().load_file(reader, where, text, state, verify, threads, progress)
        tensors = reader.load(verify=verify, progress=progress)
    with naming_damage(label(uri)):
        return rebuilt(text, tensors)


def is_folder(uri: Source, options: Options | None) -> bool:
    """Return whether there is a checkpoint of many ranks."""
    place = place_of(uri)
    if not isinstance(place, str) or place.startswith("fd:"):
        return False
    path = local_path(uri)  # type: ignore[arg-type]
    if path is not None:
        return os.path.isdir(path) and os.path.exists(os.path.join(path, FILE))
    if _core.has_name_of_file(place):
        return False  # without asking the server
    # Signatures are checked when it is loaded.
    return Folder(place, unsigned(options)).has(FILE)


def _text_of(reader: Reader, where: str) -> str:
    """Return the text that says where the tensors of a file belong."""
    try:
        texts = reader.metadata()
    except errors.IsADirectory as error:
        raise errors.IsADirectory(
            f"{where} is a folder without {FILE!r}, which a save of many ranks writes last"
        ) from error
    if KEY in texts:
        raise errors.InvalidFormat(f"{where} lists the files of many ranks: give its folder")
    if METADATA_KEY not in texts:
        raise errors.InvalidFormat(
            f"{where} has tensors and no nested state: load it with tensorizer_ops.load()"
        )
    return texts[METADATA_KEY]


def _parts(
    state: Mapping[Any, Any], metadata: Metadata | None
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors and the texts that a state is saved as."""
    tensors, text = flattened(own_states(state))
    kept = texts_of(metadata) or {}
    refuse_key(kept, METADATA_KEY)
    return tensors, {**kept, METADATA_KEY: text}


def _many_ranks() -> Any:
    return import_module("tensorizer_ops._dcp.functions")
