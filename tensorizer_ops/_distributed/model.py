"""The tensors that several ranks load together: what all of them read from the index."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.memory import as_bytes
from tensorizer_ops._distributed.shares import Extent

# The unit of cuts in unverified data, in bytes.
_PAGE = 4096
# How many tensors tell one version of a file from another, and how many elements of each.
_SAMPLES, _SAMPLE = 256, 16


class Model(NamedTuple):
    """The tensors of a load, each once: names that share data in the file are one tensor."""

    wanted: dict[str, int]  # the place of each name's tensor in the lists
    names: list[str]
    extents: list[Extent]
    types: list[torch.dtype]  # that they are loaded as
    shapes: list[list[int]]
    fingerprint: str

    @classmethod
    def read(
        cls,
        reader: Any,
        names: Sequence[str] | None,
        dtype: torch.dtype | None,
        verify: str,
        besides: Sequence[str] = (),
    ) -> Model:
        """Read the index of a file. ``besides`` says what is loaded otherwise."""
        internals = torch.classes.tensorizer._Internals(reader)
        listed = internals.list()
        every = dict(zip(reader.names(), listed.stored_as, strict=True))
        for name in names or ():
            reader.shape(name)  # raises for one that is not there
        chosen = list(every) if names is None else names
        stored = sorted({every[name] for name in chosen})
        place = {number: i for i, number in enumerate(stored)}
        of_number = {every[name]: name for name in reversed(chosen)}
        unique = [of_number[number] for number in stored]
        extents, types, shapes = [], [], []
        chunk, sizes = internals.chunk_size(verify), listed.data_sizes
        for number, name in zip(stored, unique, strict=True):
            kind: torch.dtype = getattr(torch, internals.type_name(name))
            elements = sizes[number] // kind.itemsize
            cut = max(chunk, _PAGE) // kind.itemsize if chunk else max(elements, 1)
            extents.append(Extent(elements, kind.itemsize, cut))
            types.append(dtype if dtype is not None and kind.is_floating_point else kind)
            shapes.append(reader.shape(name))
        said = [chosen, unique, extents, [str(kind) for kind in types], shapes]
        form = [internals.version(), internals.flags(), internals.claimed_size()]
        # Signed copies that differ nowhere else are of two models.
        content = [_content(reader), internals.signed_as()]
        where = [listed.data_offsets, form, content, verify, besides]
        text = json.dumps([said, where])
        wanted = {name: place[every[name]] for name in chosen}
        digest = hashlib.sha256(text.encode()).hexdigest()
        return cls(wanted, unique, extents, types, shapes, digest)

    def named(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the tensors by name; names of one tensor share memory."""
        return {name: tensors[place].detach() for name, place in self.wanted.items()}

    def new_tensors(self, device: torch.device) -> list[torch.Tensor]:
        """Return tensors to load into; zeros for those of which the file has no data."""
        made = []
        for extent, kind, shape in zip(self.extents, self.types, self.shapes, strict=True):
            tensor = torch.empty(shape, dtype=kind, device=device)
            if extent.elements == 0 and tensor.numel() > 0:
                as_bytes(tensor).zero_()
            made.append(tensor)
        return made


def _content(reader: Any) -> str:
    """Return a text that differs for files with other data, as far as that can be told at once.

    Copies of one file have the same, wherever they are.
    """
    with contextlib.suppress(errors.InvalidArgument):  # the file lists no digests
        return str(reader.digest(1, 2, True))
    internals = torch.classes.tensorizer._Internals(reader)
    if version := internals.remote_version():
        return str(version)
    # The middle of some tensors: another version of a model has other weights everywhere.
    names = [name for name in reader.names() if all(reader.shape(name))]
    names = names[:: max(len(names) // _SAMPLES, 1)]
    starts, samples = [], []
    for name in names:
        elements = math.prod(reader.shape(name))
        starts.append(elements // 2)
        kind = getattr(torch, internals.type_name(name))
        count = min(_SAMPLE, elements - elements // 2)
        samples.append(torch.empty(count, dtype=kind, device="cpu"))
    if not samples:
        return ""
    internals.load_ranges(names, starts, samples, None, "none", 1)
    data = torch.cat(list(map(as_bytes, samples)))
    return hashlib.sha256(bytes(data.numpy())).hexdigest()
