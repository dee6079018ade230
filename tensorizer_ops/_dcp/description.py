"""What a checkpoint of many ranks consists of, as a text of JSON.

The text is in the metadata of a file that has no tensors, ``checkpoint.tensors``. The data is in
other files beside it, at least one for every rank.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from tensorizer_ops._base.arguments import is_unicode
from tensorizer_ops._base.boxes import make_up
from tensorizer_ops._base.nested import Damaged, dtype_named, flattened, rebuilt
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._dcp import DATA_FILE

_VERSION = 1
_ROOT = re.compile("[0-9a-f]{64}")


class Place(NamedTuple):
    """Where a tensor, or the bytes of another value, are."""

    file: str
    name: str  # in the file
    # Of a tensor, as the list has them; the file must have the same.
    shape: Sequence[int] = ()
    dtype: str = ""
    # Of a file with a signature of its own, when it is saved: the root digest.
    root: str = ""


class Places:
    """Where everything in a checkpoint is.

    Attributes:
        roots: the root digests of files that have signatures of their own.
    """

    def __init__(self, roots: Mapping[str, str] | None = None) -> None:
        self.roots = roots or {}
        self._values: dict[str, Place] = {}
        # Sorted, and no dict: whoever wrote them can choose offsets whose hashes are equal.
        self._parts: dict[str, list[tuple[Sequence[int], Place]]] = {}

    def add_value(self, name: str, place: Place) -> None:
        self._values[name] = place

    def add_tensor(
        self,
        name: str,
        size: torch.Size,
        dtype: str,
        parts: Sequence[tuple[Sequence[int], Place]],
        requires_grad: bool = False,
    ) -> TensorStorageMetadata:
        """Add the parts of a tensor, by their offsets, and return what planners know of it.

        Raises ``Damaged`` unless they make up a tensor of this size.
        """
        chunks = [ChunkStorageMetadata(_size(at), _size(place.shape)) for at, place in parts]
        for chunk in chunks:
            if len(chunk.offsets) != len(size) or any(
                offset + length > whole
                for offset, length, whole in zip(chunk.offsets, chunk.sizes, size, strict=True)
            ):
                raise Damaged(f"it has a part outside of tensor {quoted(name)}")
        if not make_up(size, [(chunk.offsets, chunk.sizes) for chunk in chunks]):
            raise Damaged(
                f"it has parts of tensor {quoted(name)} that overlap, or lacks some of it"
            )
        # Empty parts come behind another one with the same offsets, which find() returns.
        self._parts[name] = sorted(parts, key=lambda part: (part[0], 0 in part[1].shape))
        properties = TensorProperties(dtype=dtype_named(dtype), requires_grad=requires_grad)
        return TensorStorageMetadata(properties, size, chunks)

    def of_tensors(self) -> Iterator[Place]:
        """Yield the place of every part of every tensor."""
        return (place for parts in self._parts.values() for _, place in parts)

    def find(self, index: MetadataIndex) -> Place:
        if index.offset is None:
            return self._values[index.fqn]
        parts = self._parts[index.fqn]
        return parts[bisect_left(parts, list(index.offset), key=itemgetter(0))][1]


def described(metadata: Metadata, places: Mapping[MetadataIndex, Place]) -> str:
    """Return the text for what a planner has planned and writers have written."""
    files: dict[str, int] = {}

    def place(index: MetadataIndex) -> list[Any]:
        found = places[index]
        return [files.setdefault(found.file, len(files)), found.name]

    tensors, values = {}, {}
    for name, stored in metadata.state_dict_metadata.items():
        if isinstance(stored, BytesStorageMetadata):
            values[name] = place(MetadataIndex(name))
            continue
        tensors[name] = {
            "dtype": str(stored.properties.dtype).removeprefix("torch."),
            "requires_grad": stored.properties.requires_grad,
            "size": list(stored.size),
            "chunks": [
                [list(chunk.offsets), list(chunk.sizes), *place(MetadataIndex(name, chunk.offsets))]
                for chunk in stored.chunks
            ],
        }
    planned, planner = flattened(metadata.planner_data)
    if planned:
        raise TypeError("the planner's data has tensors")
    text = {
        "version": _VERSION,
        "tensors": tensors,
        "values": values,
        "files": list(files),
        "planner": planner,
    }
    roots = {one.file: one.root for one in places.values() if one.root}
    return json.dumps({**text, "roots": roots} if roots else text)


def understood(text: str) -> Metadata:
    """Return what a text describes; ``storage_data`` has the :class:`Places`.

    Raises one of ``DAMAGE`` of ``_nested`` for a damaged text.
    """
    found = json.loads(text)
    if found["version"] != _VERSION:
        raise Damaged(
            f"it has version {quoted(found['version'])}, and this release reads {_VERSION}"
        )
    files = found["files"]
    for file in files:
        if not isinstance(file, str) or not DATA_FILE.fullmatch(file):
            raise Damaged(f"it names {quoted(file)}, which is no file of a rank")
    roots = dict(found.get("roots", {}).items())
    if not all(isinstance(root, str) and _ROOT.fullmatch(root) for root in roots.values()):
        raise Damaged("it has a root digest that is none")
    stored: dict[str, Any] = {}
    places = Places(roots)
    for name, one in found["tensors"].items():
        dtype = one["dtype"]
        parts = [
            (offsets, _place(files, file, inner)._replace(shape=sizes, dtype=dtype))
            for offsets, sizes, file, inner in one["chunks"]
        ]
        size, requires_grad = _size(one["size"]), bool(one["requires_grad"])
        stored[name] = places.add_tensor(name, size, dtype, parts, requires_grad)
    for name, (file, inner) in found["values"].items():
        stored[name] = BytesStorageMetadata()
        places.add_value(name, _place(files, file, inner))
    planner = rebuilt(found["planner"], {})
    return Metadata(stored, planner_data=planner, storage_data=places)


def _size(numbers: Sequence[int]) -> torch.Size:
    if not isinstance(numbers, list | torch.Size) or not all(
        type(number) is int and 0 <= number < 1 << 63 for number in numbers
    ):
        raise Damaged("it has a size that is none")
    return torch.Size(numbers)


def _place(files: list[str], number: int, name: str) -> Place:
    if type(number) is not int or not 0 <= number < len(files):
        raise Damaged("it refers to no file")
    if not isinstance(name, str) or not is_unicode(name):
        raise Damaged("it has a name that is none")
    return Place(files[number], name)
