"""Where ``torch.distributed.checkpoint`` writes to and reads from: a file for every rank."""

from __future__ import annotations

import io
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
)
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import checked
from tensorizer_ops._base.file_objects import label
from tensorizer_ops._base.folder import Folder
from tensorizer_ops._base.nested import DAMAGE, damage, refuse_key, refuse_meta
from tensorizer_ops._base.options import (
    Hashes,
    Metadata as Texts,
    Options,
    Verify,
    kept,
    texts_of as as_texts,
)
from tensorizer_ops._base.progress import Progress
from tensorizer_ops._base.signing import Key, signed
from tensorizer_ops._base.targets import Target
from tensorizer_ops._dcp import DATA_FILE, FILE, KEY, NAME_KEY
from tensorizer_ops._dcp.description import Place, Places, described, understood
from tensorizer_ops._dcp.reading import Wanted, check_place, fill, opened
from tensorizer_ops._dcp.signatures import Signatures
from tensorizer_ops._dcp.staging import Copies
from tensorizer_ops._dcp.steps import check_step, step_named
from tensorizer_ops._front.load_save import save

# Files that are looked for at the same time.
_REQUESTS = 8


class _Current(threading.local):
    """What one save or load keeps. Torch calls all methods for one in the same thread."""

    place: Target | None = None
    save_id = ""
    rank = 0
    places = Places()
    # Of HuggingFaceStorageWriter: the names in the order of the state, and what finish() publishes.
    order: Sequence[str] = ()
    model: Any = None

    def __init__(self) -> None:
        self.texts: Mapping[str, str] = {}  # the metadata that was read
        self.folder: Folder | None = None  # that is being read
        self.signatures: Signatures | None = None  # of its files
        self.signed_as = ""  # what is different for other checkpoints that are signed
        self.readers: dict[str, Any] = {}  # that HuggingFaceStorageReader has opened

    def __reduce__(self) -> tuple[type[_Current], tuple[()]]:
        return _Current, ()


class _Place:
    """Where a checkpoint is: what the writer and the reader have in common."""

    def __init__(self, path: Target | None, options: Options | None) -> None:
        super().__init__()
        self._path = path
        self._options = kept(options)
        self._current = _Current()

    def __repr__(self) -> str:
        place = "no path" if self._path is None else label(self._path)
        return f"<tensorizer_ops.checkpoint.{type(self).__name__}: {place}>"

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether something can be the place of a checkpoint."""
        return isinstance(checkpoint_id, str | os.PathLike)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin to save or load a checkpoint."""
        self._current.place = self._path if checkpoint_id is None else checkpoint_id

    def place_of(self, checkpoint_id: Target | None) -> Target:
        """Return where a checkpoint is, which the constructor or a call says; raise if none did."""
        place = checkpoint_id or self._path
        if place is None:
            raise errors.InvalidArgument(f"{type(self).__name__} needs a path or a checkpoint_id")
        return place

    def _folder(self) -> Folder:
        return Folder(self.place_of(self._current.place), self._options)


class TensorizerStorageWriter(_Place, StorageWriter, AsyncStager):
    """Writes checkpoints of ``torch.distributed.checkpoint``: to a folder, S3 or Redis.

    Each rank writes one ``.tensors`` file, and then rank 0 the file ``checkpoint.tensors``, which
    lists what is in them. So a save that does not end leaves the checkpoint that was there before.
    In a local folder, the files of that are deleted afterwards.

    Torch's ``async_save`` copies the state into memory of the writer. Pass the same writer to all
    saves, so that they use the same memory.

    Args:
        path: a folder, ``s3://bucket/prefix`` or ``redis://host/prefix``. ``checkpoint_id`` of a
            save replaces it.
        hashes: which hashes to write with every tensor.
        threads: how many threads each rank computes with; 0 means one for every CPU, and one in an
            ``async_save``.
        options: as for :func:`tensorizer_ops.save`. In local folders, ``fsync`` is ``"true"`` if
            they do not say otherwise.
        metadata: texts to store in ``checkpoint.tensors``.
        progress: as for :func:`tensorizer_ops.save`, of the file of this rank.
    """

    _synchronize_after_execute = False

    @checked
    def __init__(
        self,
        path: Target | None = None,
        *,
        hashes: Hashes = "chunked",
        threads: int = 0,
        options: Options | None = None,
        metadata: Texts | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(path, options)
        self._threads = threads
        self._metadata = as_texts(metadata) or {}
        refuse_key(self._metadata, KEY)
        self._progress = progress
        self._hashes: Hashes = hashes
        self.copies = Copies()
        self._in_background = False
        # Of the names of files; each save chooses its own if it is empty.
        self.file_id = ""
        self.sign: Key | None = None  # what each file is signed with

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin to save a checkpoint."""
        super().reset(checkpoint_id)
        self._current.save_id = secrets.token_hex(8)

    def storage_meta(self) -> StorageMeta:
        """Return what planners may know of the storage."""
        return StorageMeta(checkpoint_id=self._folder().name, save_id=self._current.save_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Receive the rank of this process."""
        if not kwargs.get("use_collectives", True):
            raise errors.InvalidArgument(
                f"{type(self).__name__} needs use_collectives=True: one file lists the files of "
                "all ranks"
            )
        self._current.rank = kwargs.get("rank") or 0

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the file of this rank."""
        # A new name, because the last checkpoint stays until this one is complete.
        file = f"rank-{self._current.rank}-{self.file_id or secrets.token_hex(8)}.tensors"
        self.copies.wait()
        in_background, self._in_background = self._in_background, False
        tensors: dict[str, torch.Tensor] = {}
        sizes: list[tuple[MetadataIndex, int]] = []
        for item in plan.items:
            data = planner.resolve_data(item)
            tensor = data if isinstance(data, torch.Tensor) else _as_tensor(data)
            refuse_meta(tensor, item.index.fqn)
            name = _name(item.index, tensors)
            tensors[name] = tensor
            sizes.append((item.index, tensor.numel() * tensor.itemsize))
        root = ""
        if tensors:
            threads = self._threads or int(in_background)
            root = self._save(file, tensors, threads, {NAME_KEY: file}, self._progress)
        results = [
            WriteResult(index, size, Place(file, name, root=root))
            for (index, size), name in zip(sizes, tensors, strict=True)
        ]
        written: Future[list[WriteResult]] = Future()
        written.set_result(results)
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write what lists the files of all ranks: from here on, this is the checkpoint."""
        places = {one.index: one.storage_data for of_rank in results for one in of_rank}
        self._check_files({place.file for place in places.values()})
        self._save(FILE, {}, 1, {**self._metadata, KEY: described(metadata, places)})
        folder = self._folder().path
        if folder is not None and not self.file_id:  # the folder of a step has no others
            _delete_others(Path(folder), {place.file for place in places.values()})

    def _check_files(self, files: set[str]) -> None:
        folder = self._folder()
        with ThreadPoolExecutor(_REQUESTS) as pool:
            for file, there in zip(files, pool.map(folder.has, files), strict=True):
                if not there:
                    raise errors.NotFound(
                        f"{folder.label} lacks {file!r}, which a rank has saved: all ranks must "
                        "save to the same place, and see it"
                    )

    def stage(self, state_dict: Any) -> Any:
        """Return a copy of a state on the CPU."""
        self._in_background = True
        return self.copies.copy(state_dict)

    def synchronize_staging(self) -> None:
        """Do nothing: copies from devices are awaited before they are written."""

    def close(self) -> None:
        """Let go of the memory for copies."""
        self.copies.clear()

    def _save_options(self) -> dict[str, str]:
        options = dict(self._options)
        if self._folder().path is not None:
            options = {"fsync": "true", "replace_links": "true"} | options
        return options

    def _save(
        self,
        file: str,
        tensors: Mapping[str, torch.Tensor],
        threads: int,
        texts: Mapping[str, str],
        progress: Progress | None = None,
    ) -> str:
        """Write a file, and return the root digest if it is signed."""
        how: Any = {"hashes": self._hashes, "threads": threads}
        how |= {"metadata": texts, "progress": progress}
        folder, options = self._folder(), self._save_options()
        if self.sign is None:
            save(folder.uri(file), tensors, options=options, **how)
            return ""
        with signed(folder, file, self.sign, options) as to_sign:
            save(to_sign.path, tensors, options=to_sign.options, **how)
        return to_sign.root


class TensorizerStorageReader(_Place, StorageReader):
    """Reads what :class:`TensorizerStorageWriter` has written, from wherever tensors are loaded.

    Each rank reads the parts that it needs, whatever the number of ranks that saved them.

    Args:
        path: as for the writer, or ``https://``. ``checkpoint_id`` of a load replaces it.
        verify: which hashes to compare.
        threads: how many threads each rank computes with; 0 means one for every CPU.
        options: as for :func:`tensorizer_ops.load`.
    """

    @checked
    def __init__(
        self,
        path: Target | None = None,
        *,
        verify: Verify = "none",
        threads: int = 0,
        options: Options | None = None,
    ) -> None:
        super().__init__(path, options)
        if "key" in self._options:  # what a writer has encrypted is always authenticated
            self._options.setdefault("require_authenticated", "true")
        self._verify = verify
        self._threads = threads

    def read_metadata(self) -> Metadata:
        """Return what is in the checkpoint."""
        self._current.folder = None
        folder = self._folder()
        self._current.signatures = Signatures(folder)
        reader = torch.classes.tensorizer.Reader(folder.uri(FILE), self._loads(FILE))
        texts = self._current.texts = reader.metadata()
        self._current.signed_as = torch.classes.tensorizer._Internals(reader).signed_as()
        check_step(step_named(folder.place), f"{FILE!r} in {folder.label}", texts)
        text = texts.get(KEY)
        if text is None:
            raise errors.InvalidFormat(f"{FILE!r} in {folder.label} lists no files of a checkpoint")
        try:
            metadata = understood(text)
        except DAMAGE as error:
            raise errors.InvalidFormat(
                f"{FILE!r} in {folder.label}: the list of files is damaged: {damage(error)}"
            ) from error
        metadata.storage_meta = StorageMeta(checkpoint_id=folder.name)
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Receive what is in the checkpoint."""
        self._current.places = metadata.storage_data

    def _check_places(self) -> None:
        """Raise if a tensor is not what is listed: a list alone is no reason to take memory."""
        folder = self._folder()
        by_file: dict[str, dict[str, Place]] = {}
        for place in self._current.places.of_tensors():
            names = by_file.setdefault(place.file, {})
            if names.setdefault(place.name, place) is not place:
                raise errors.InvalidFormat(
                    f"{FILE!r} in {folder.label} has two tensors in the place of one"
                )
        for file, names in by_file.items():
            reader = self._opened(file)
            internals = torch.classes.tensorizer._Internals(reader)
            for place in names.values():
                check_place(reader, internals, place)

    def _folder(self) -> Folder:
        """Return the folder: the same for a whole load, so that its signature is read once."""
        if self._current.folder is None:
            self._current.folder = super()._folder()
        return self._current.folder

    def _loads(self, file: str) -> dict[str, str]:
        """Return the options to load a file with, which let no other take its place."""
        signatures = self._current.signatures
        if signatures is None or self._folder().policy is None:
            return self._options
        return signatures.loads(file, self._current.places.roots)

    def _opened(self, file: str) -> Any:
        return opened(self._folder().uri(file), file, self._loads(file))

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan, with what was read if it must be signed."""
        if "trust" not in self._options:
            return plan
        return replace(plan, storage_data=self._signed_content())

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans; raise if ranks have read other checkpoints that are signed."""
        if any(plan.storage_data != plans[0].storage_data for plan in plans):
            raise errors.HashMismatch(
                f"{self._folder().label}: ranks read different signed checkpoints: it was replaced "
                "meanwhile, or they do not see the same place"
            )
        return plans

    def _signed_content(self) -> Any:
        """Return what is different for other checkpoints."""
        return self._current.signed_as

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the tensors of this rank, from one file after another."""
        wanted: dict[str, list[Wanted]] = {}
        for item in plan.items:
            place = self._current.places.find(item.storage_index)
            wanted.setdefault(place.file, []).append(Wanted(place, item))
        for file, items in wanted.items():
            fill(self._opened(file), items, planner, self._verify, self._threads)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _as_tensor(file: io.BytesIO) -> torch.Tensor:
    data = bytearray(file.getvalue())
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _name(index: MetadataIndex, taken: Mapping[str, torch.Tensor]) -> str:
    """Return what an item is called in the file of its rank."""
    name = index.fqn
    if index.offset is not None and any(index.offset):
        name += f" from {list(index.offset)}"
    count = 1
    while name in taken:  # another tensor is called so
        count += 1
        name = f"{index.fqn} ({count})"
    return name


def _delete_others(folder: Path, kept: set[str]) -> None:
    """Delete the data of earlier checkpoints, and of saves that did not end."""
    for path in folder.iterdir():
        if DATA_FILE.fullmatch(path.name) and path.name not in kept:
            path.unlink(missing_ok=True)
