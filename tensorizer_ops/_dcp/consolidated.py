"""Writes what many ranks have saved into files that one process loads, some tensors at a time."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from tensorizer_ops import _core, errors
from tensorizer_ops._base.file_objects import label
from tensorizer_ops._base.folder import Folder
from tensorizer_ops._base.nested import METADATA_KEY, flattened, naming_damage
from tensorizer_ops._base.options import Hashes, Options, Verify, as_text, bytes_of
from tensorizer_ops._base.progress import Bar, Progress
from tensorizer_ops._base.targets import Target, local_path, to_uri
from tensorizer_ops._dcp import KEY
from tensorizer_ops._dcp.paths import nested
from tensorizer_ops._dcp.planners import JsonLoadPlanner
from tensorizer_ops._dcp.storage import TensorizerStorageReader
from tensorizer_ops._front.selection import nothing_matches
from tensorizer_ops._front.writer import Writer

# The model in a folder, and the usual size of its shards, as transformers has them.
_MODEL = "model.safetensors"
_SHARD = 5_000_000_000
# Bytes of small tensors that are read at a time.
_BATCH = 32 << 20


class _Tensor(NamedTuple):
    name: str  # in the checkpoint
    size: int
    dtype: torch.dtype


class _Saved(TensorizerStorageReader):
    """A checkpoint whose files stay open."""

    def __init__(self, uri: Target, verify: Verify, threads: int, options: Options | None) -> None:
        super().__init__(uri, verify=verify, threads=threads, options=options)
        self._readers: dict[str, Any] = {}
        self.listed = self.read_metadata()
        self.texts = self._current.texts
        self.set_up_storage_reader(self.listed, True)
        self._check_places()

    def read(self, names: Iterable[str]) -> dict[str, Any]:
        """Return tensors and other values by their names in the checkpoint."""
        stored = {name: self.listed.state_dict_metadata[name] for name in names}
        state: dict[str, Any] = {
            name: torch.empty(one.size, dtype=one.properties.dtype, device="cpu")
            if isinstance(one, TensorStorageMetadata)
            else None
            for name, one in stored.items()
        }
        planner = JsonLoadPlanner()
        planner.set_up_planner(state, Metadata(stored), True)
        self.read_data(planner.create_local_plan(), planner)
        return state

    def _opened(self, file: str) -> Any:
        if file not in self._readers:
            self._readers[file] = super()._opened(file)
        return self._readers[file]


def consolidate(
    uri: Target,
    target: Target,
    prefix: str,
    verify: Verify,
    hashes: Hashes,
    threads: int,
    source_options: Options | None,
    target_options: Options | None,
    progress: Progress | None,
) -> None:
    """Implement the function of this name in ``checkpoint``."""
    options = as_text(target_options)
    given_size = bytes_of(options, "max_shard_size")
    options.pop("max_shard_size", None)
    path = local_path(target)
    name = os.fsdecode(target) if path is not None else _core.split_query(to_uri(target))[0]
    in_folder = name.endswith("/") or (path is not None and os.path.isdir(path))
    if given_size and not in_folder:
        raise errors.InvalidArgument(
            "max_shard_size is for a folder of safetensors files: end the name of the target with "
            "a slash"
        )
    form = options.get("format") or (
        "safetensors" if in_folder else _core.format_of(to_uri(target))
    )
    saved = _Saved(uri, verify, threads, source_options)
    tensors, text = _state_of(saved, label(uri))
    texts = {key: text for key, text in saved.texts.items() if key != KEY}
    if form == "safetensors":
        texts = {"format": "pt", **texts}
    elif not prefix:
        texts[METADATA_KEY] = text
    chosen = {n.removeprefix(prefix): one for n, one in tensors.items() if n.startswith(prefix)}
    if prefix and not chosen:
        raise nothing_matches("prefix", prefix, list(tensors))
    with closing(Bar()) as bar:
        report = _counted(chosen, bar if progress is True else progress or None)
        files = _Files(saved, hashes, threads, {**options, "format": form}, texts, report)
        if in_folder:
            files.write_folder(chosen, Folder(target, options), given_size or _SHARD)
        else:
            files.write(chosen, to_uri(target))


class _Files(NamedTuple):
    """Writes files of the target."""

    saved: _Saved
    hashes: Hashes
    threads: int
    options: dict[str, str]
    texts: dict[str, str]
    report: Callable[[int], object]

    def write(self, tensors: Mapping[str, _Tensor], uri: str) -> None:
        """Write one file."""
        if self.options["format"] == "safetensors":  # in the order of that library
            by_type = sorted(tensors.items(), key=lambda each: (-each[1].dtype.itemsize, each[0]))
            tensors = dict(by_type)
        writer = Writer(
            uri,
            hashes=self.hashes,
            metadata=self.texts,
            threads=self.threads,
            expected_tensors=len(tensors),
            expected_bytes=sum(one.size for one in tensors.values()),
            options=self.options,
        )
        with writer:
            for names in _groups(tensors, _BATCH):
                read = self.saved.read(tensors[name].name for name in names)
                for name in names:
                    writer.add(name, read.pop(tensors[name].name))
                    self.report(tensors[name].size)

    def write_folder(self, tensors: Mapping[str, _Tensor], folder: Folder, most: int) -> None:
        """Write a model in one file, or in shards of so many bytes and their index."""
        if self.options["format"] != "safetensors":
            raise errors.InvalidArgument(
                "the target is a folder, which gets safetensors files, and not those of the option "
                "'format'"
            )
        index = f"{_MODEL}.index.json"
        for name in (_MODEL, index):
            if folder.has(name):
                raise errors.InvalidArgument(
                    f"{folder.label} already has a model in {name!r}: remove it, or give another "
                    "folder"
                )
        shards = list(_groups(tensors, most)) or [[]]
        if len(shards) == 1:
            self.write(tensors, folder.uri(_MODEL))
            return
        weights = {}
        with ExitStack() as failed:
            for number, names in enumerate(shards, start=1):
                file = f"model-{number:05}-of-{len(shards):05}.safetensors"
                self.write({name: tensors[name] for name in names}, folder.uri(file))
                failed.callback(folder.remove, file)
                weights.update(dict.fromkeys(names, file))
            size = sum(one.size for one in tensors.values())
            with tempfile.NamedTemporaryFile("w", encoding="utf-8") as made:
                listed = {"metadata": {"total_size": size}, "weight_map": weights}
                json.dump(listed, made, indent=2, sort_keys=True)
                made.write("\n")
                made.flush()
                folder.write(index, made.name)
            failed.pop_all()


def _groups(tensors: Mapping[str, _Tensor], most: int) -> Iterator[list[str]]:
    """Yield names of tensors that together have at most so many bytes, or are one."""
    names: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if names and size + tensor.size > most:
            yield names
            names, size = [], 0
        names.append(name)
        size += tensor.size
    if names:
        yield names


def _state_of(saved: _Saved, where: str) -> tuple[dict[str, _Tensor], str]:
    """Return the tensors by their names in a file, and the text that says where they belong."""
    stored = saved.listed.state_dict_metadata
    tensors = {n: s for n, s in stored.items() if isinstance(s, TensorStorageMetadata)}
    values = saved.read(name for name in stored if name not in tensors)
    # In the place of each tensor, so that the state gets the names of a save without its data.
    marks = {name: torch.empty(1, device="cpu") for name in tensors}
    with naming_damage(where):
        flat = {name: marks[name] if name in marks else values[name] for name in stored}
        state = nested(flat, saved.listed.planner_data or {})
    named, text = flattened(state)
    of_marks = {id(mark): name for name, mark in marks.items()}
    found = {}
    for name, mark in named.items():
        one = tensors[of_marks[id(mark)]]
        dtype = one.properties.dtype
        found[name] = _Tensor(of_marks[id(mark)], one.size.numel() * dtype.itemsize, dtype)
    return found, text


def _counted(
    tensors: Mapping[str, _Tensor], progress: Callable[[int, int], object] | None
) -> Callable[[int], None]:
    """Return a function that counts bytes which are done."""
    total = sum(tensor.size for tensor in tensors.values())
    done = 0

    def report(size: int) -> None:
        nonlocal done
        done += size
        if progress:
            progress(done, total)

    report(0)
    return report
