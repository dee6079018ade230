"""Storage for ``torch.distributed.checkpoint`` that reads and writes the models of Hugging Face."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import (
    Metadata,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.device_mesh import DeviceMesh
from torch.futures import Future

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import checked
from tensorizer_ops._base.folder import Folder, is_signed_file, model_of, names_in
from tensorizer_ops._base.nested import DAMAGE, Damaged, damage, refuse_meta
from tensorizer_ops._base.options import Metadata as Texts, Options, SecretOptions, bytes_of
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._base.savable import refuse_other_metadata
from tensorizer_ops._base.targets import Target, to_uri
from tensorizer_ops._dcp.description import Place, Places
from tensorizer_ops._dcp.storage import TensorizerStorageReader, TensorizerStorageWriter
from tensorizer_ops._distributed.boxes import Box, local_shard
from tensorizer_ops._distributed.meshes import given_group
from tensorizer_ops._distributed.peers import Alone, Peers
from tensorizer_ops._distributed.save import agreed, write_file

_SINGLE = "model.safetensors"
# The files of torch's writer, one or more of each rank, and where in a tensor their parts begin.
_OF_A_RANK = re.compile(r"shard-[0-9]+-model-[0-9]+-of-[0-9]+\.safetensors")
_SHARDING = "DCP_SHARDING_INFO"


class HuggingFaceStorageWriter(TensorizerStorageWriter):
    """Writes a model as Hugging Face's libraries do: safetensors files, and their index.

    The files are those that one process would save, and transformers loads them. All ranks write
    into each of them, as in :func:`tensorizer_ops.distributed.save`, and nothing is merged
    afterwards. They appear when all of them are complete, and the index last: until then a model
    that was there before stays.

    All values of the state are tensors. Their names are those of the state; those of nested dicts
    are joined by dots.

    Args:
        path: a folder that all ranks share, or a prefix in S3 or Azure. ``checkpoint_id`` of a save
            replaces it.
        fqn_to_index_mapping: the number of the file of each tensor, from 1 on, as for torch's
            writer. By default there is one file, ``model.safetensors``, unless the option
            ``max_shard_size`` asks for several.
        group: the ranks that save, if ``process_group`` of the save is given: the same.
        hashes: which hashes to write with every tensor.
        options: as for :func:`tensorizer_ops.save`. In local folders, ``fsync`` is ``"true"`` if
            they do not say otherwise.
        metadata: texts to store in each file. ``format`` is ``"pt"`` if they do not say otherwise.
    """

    @checked
    def __init__(
        self,
        path: Target | None = None,
        fqn_to_index_mapping: Mapping[str, int] | None = None,
        group: dist.ProcessGroup | DeviceMesh | None = None,
        *,
        hashes: Literal["chunked", "none"] = "chunked",
        options: Options | None = None,
        metadata: Texts | None = None,
    ) -> None:
        texts: Texts = {"format": "pt", **(metadata or {})}
        super().__init__(path, hashes=hashes, options=options, metadata=texts)
        refuse_other_metadata(self._metadata)
        self._mapping = fqn_to_index_mapping
        self._group = given_group(group)
        self._most = bytes_of(options, "max_shard_size") or math.inf
        if fqn_to_index_mapping is not None and self._most != math.inf:
            raise errors.InvalidArgument(
                "both fqn_to_index_mapping and the option max_shard_size say which tensors are in "
                "a file: give one of them"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan; raise for what is no tensor."""
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                raise errors.InvalidArgument(
                    f"state[{item.index.fqn!r}] is no tensor, and a safetensors file has only "
                    "tensors: leave it out, or save with TensorizerStorageWriter"
                )
        self._current.model = None
        self._current.order = [item.index.fqn for item in plan.items]
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans with the number of ranks."""
        if len(plans) > 1 and len(plans) != (size := dist.get_world_size(self._group)):
            raise errors.InvalidArgument(
                f"{len(plans)} ranks save, and the group of HuggingFaceStorageWriter has {size}: "
                "give it the same group"
            )
        return [dataclasses.replace(plan, storage_data=len(plans)) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the sections of all files that this rank writes."""
        self.copies.wait()
        alone = plan.storage_data == 1
        try:
            with Alone() if alone else Peers(self._group, "HuggingFaceStorageWriter") as peers:
                results = self._write(plan, planner, peers)
        except BaseException:
            self._current.model = None  # which gives up its files
            raise
        written: Future[list[WriteResult]] = Future()
        written.set_result(results)
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Let the files appear, and their index last: from here on, this is the model."""
        model, self._current.model = self._current.model, None
        model.publish()

    def _write(self, plan: SavePlan, planner: SavePlanner, peers: Peers) -> list[WriteResult]:
        shards: dict[str, list[tuple[torch.Tensor, Box]]] = {}
        announced: list[Any] = []
        results = []
        for item in plan.items:
            name, data = item.index.fqn, planner.resolve_data(item)
            assert isinstance(data, torch.Tensor) and item.tensor_data is not None
            refuse_meta(data, name)
            local, _ = local_shard(name, data)
            chunk = item.tensor_data.chunk
            box = Box(tuple(chunk.offsets), tuple(chunk.sizes))
            if tuple(local.shape) != box.lengths:
                raise errors.InvalidArgument(
                    f"state[{name!r}] has a part of the shape {list(local.shape)}, and its plan "
                    f"says {list(box.lengths)}"
                )
            shards.setdefault(name, []).append((local, box))
            dtype = str(local.dtype).removeprefix("torch.")
            announced.append([name, dtype, list(item.tensor_data.size), *box])
            results.append(WriteResult(item.index, local.nbytes, name))
        whole = agreed(announced, peers, self._metadata)
        options = SecretOptions(self._save_options())
        options.pop("max_shard_size", None)
        files: list[Any] = peers.agree(None, lambda _: self._files(whole))
        written = []
        for name, replaces, tensors in files:
            uri, those = self._folder().uri(name), [whole[number] for number in tensors]
            how = (self._hashes, options, self._metadata, replaces)
            written.append(write_file(uri, those, shards, peers, *how))
        for file in written:
            if peers.rank == 0:
                self._current.model.add(file)
            else:
                file.leave()
        return results

    def _files(self, whole: Sequence[Any]) -> list[Any]:
        """Return the files: the name, the path that it replaces, and the numbers of its tensors."""
        order = {name: number for number, name in enumerate(self._current.order)}
        numbers = sorted(range(len(whole)), key=lambda n: order.get(whole[n][0], len(order)))
        groups: dict[int, list[int]] = {}
        size = file = 0
        for number in numbers:
            name, dtype, shape, _ = whole[number]
            if self._mapping is None:
                size += (added := math.prod(shape) * getattr(torch, dtype).itemsize)
                if size > self._most:
                    file, size = file + 1, added
            elif name in self._mapping:
                file = self._mapping[name]
            else:
                raise errors.InvalidArgument(f"fqn_to_index_mapping has no file for {name!r}")
            groups.setdefault(file, []).append(number)
        uri = self._folder().uri(_SINGLE)
        self._current.model = torch.classes.tensorizer._SharedModel(uri, self._save_options())
        tensors = [groups[file] for file in sorted(groups)] or [[]]
        names = self._current.model.choose_names(len(tensors))
        replaced = [self._current.model.replaced_by(number) for number in range(len(names))]
        return list(zip(names, replaced, tensors, strict=True))


class HuggingFaceStorageReader(TensorizerStorageReader):
    """Reads models of Hugging Face: one file, or several with their index.

    Each rank reads the parts that it needs. Also reads what torch's ``HuggingFaceStorageWriter``
    has written: its model, and the files of its ranks, which are in a local folder.

    Args:
        path: a folder, a file or its index, also on a server, such as ``hf://org/model``.
            ``checkpoint_id`` of a load replaces it.
        verify, threads, options: as for :class:`TensorizerStorageReader`.
    """

    def read_metadata(self) -> Metadata:
        """Return what is in the model."""
        self._close()
        folder = self._folder()
        places = Places()
        parts: dict[str, list[tuple[list[int], Place]]] = {}
        try:
            for file in _files_of_ranks(folder) or [""]:
                reader = self._opened(file)
                internals = torch.classes.tensorizer._Internals(reader)
                offsets = json.loads(reader.metadata().get(_SHARDING, "null"))
                for name in reader.names():
                    shape = reader.shape(name)
                    at = list(offsets[name]["saved_offsets"]) if offsets else [0] * len(shape)
                    place = Place(file, name, shape, internals.type_name(name))
                    parts.setdefault(name, []).append((at, place))
            stored = {name: _added(places, name, those) for name, those in parts.items()}
        except DAMAGE as error:
            if isinstance(error, errors.Error):
                raise
            raise errors.InvalidFormat(
                f"{folder.label}: {_SHARDING} in the metadata of its files is damaged: "
                f"{damage(error)}"
            ) from error
        about = StorageMeta(checkpoint_id=folder.name)
        return Metadata(dict(stored), storage_data=places, storage_meta=about)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the tensors of this rank."""
        done = super().read_data(plan, planner)
        self._close()
        return done

    def _signed_content(self) -> Any:
        internals = map(torch.classes.tensorizer._Internals, self._current.readers.values())
        return [each.signed_as() for each in internals]

    def _close(self) -> None:
        self._current.readers.clear()
        self._current.folder = None

    def _opened(self, file: str) -> Any:
        readers = self._current.readers
        if file not in readers:
            folder = self._folder()
            if file:
                uri, options = folder.uri(file), folder.loads
            else:
                place = to_uri(self.place_of(self._current.place))
                uri, options, _ = model_of(place, self._options, folder)
            readers[file] = torch.classes.tensorizer.Reader(uri, options)
        return readers[file]


def _files_of_ranks(folder: Folder) -> list[str]:
    """Return the files of torch's writer in a folder, if it has not merged them."""
    if folder.path is None:
        return []
    if folder.policy is not None:  # whatever was taken away
        files = [] if is_signed_file(folder.place) else folder.signed_weights()
    elif not os.path.isdir(folder.path):
        return []
    else:
        files = [name for name in names_in(folder.path) if name.endswith(".safetensors")]
    return sorted(files) if all(map(_OF_A_RANK.fullmatch, files)) else []


def _added(
    places: Places, name: str, parts: Sequence[tuple[list[int], Place]]
) -> TensorStorageMetadata:
    """Add the parts of a tensor to the places, and return what planners know of it."""
    kinds = {(len(place.shape), place.dtype) for _, place in parts}
    if len(kinds) > 1:
        raise Damaged(f"it has parts of tensor {quoted(name)} of different types or dimensions")
    ends = [map(int.__add__, at, place.shape) for at, place in parts]
    size = torch.Size(map(max, *ends) if len(ends) > 1 else ends[0])
    return places.add_tensor(name, size, parts[0][1].dtype, parts)
