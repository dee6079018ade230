"""Reads parts of the tensors in one file into tensors that are there."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import kind_of
from tensorizer_ops._base.devices import first_use
from tensorizer_ops._base.memory import has_memory, is_plain, plain_parts
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._base.savable import fillable, held
from tensorizer_ops._base.slices import of_boxes
from tensorizer_ops._dcp import NAME_KEY
from tensorizer_ops._dcp.description import Place

# Bytes of parts that are loaded at a time and then copied.
_BATCH = 64 << 20


class Wanted(NamedTuple):
    """What to read of a file."""

    place: Place
    item: ReadItem

    @property
    def name(self) -> str:
        return self.place.name


class _Direct(NamedTuple):
    """A run of elements that is loaded into its place."""

    name: str
    start: int
    target: torch.Tensor


def opened(uri: str, file: str, options: dict[str, str]) -> Any:
    """Return a reader of the file of a rank."""
    reader = torch.classes.tensorizer.Reader(uri, options)
    if reader.metadata().get(NAME_KEY) != file:
        raise errors.InvalidFormat(
            f"{file!r} is not the file that a rank has saved under this name: it was replaced"
        )
    return reader


def check_place(reader: Any, internals: Any, place: Place) -> None:
    """Raise if a tensor in a file is another one than the list of files says."""
    shape = reader.shape(place.name)
    stored = internals.type_name(place.name)
    if [shape, stored] != [place.shape, place.dtype]:
        raise errors.InvalidFormat(
            f"tensor {quoted(place.name)} in {place.file!r} is {stored} {shape}, and the "
            f"list of files says {place.dtype} {place.shape}"
        )


def fill(
    reader: Any, items: Sequence[Wanted], planner: LoadPlanner, verify: str, threads: int
) -> None:
    """Read all items, which are of one file, and give them to the planner."""
    direct: list[_Direct] = []
    taken: set[str] = set()  # the names in `direct`, each once
    copied: list[tuple[Wanted, torch.Tensor]] = []
    # Parts that can be verified only with the rest, or that are pages of a local file.
    cut: list[tuple[Wanted, torch.Tensor]] = []
    internals = torch.classes.tensorizer._Internals(reader)
    chunk = internals.chunk_size(verify)
    parts_verify = chunk > 0
    maps = chunk == 1 and internals.can_map()  # and verifies nothing
    filled: list[tuple[ReadItem, torch.Tensor]] = []
    for wanted in items:
        if wanted.item.type == LoadItemType.BYTE_IO:
            continue
        name = wanted.item.dest_index.fqn
        target = fillable(name, planner.resolve_tensor(wanted.item))
        lengths = list(wanted.item.lengths)
        if list(target.shape) != lengths:
            raise errors.InvalidArgument(
                f"state[{name!r}] has a part of the shape "
                f"{list(target.shape)}, and the checkpoint one of {lengths}"
            )
        filled.append((wanted.item, target))
        if target.numel() == 0:
            continue
        first_use(target.device)
        check_place(reader, internals, wanted.place)
        shape = wanted.place.shape
        start = _start_of_run(shape, wanted.item.storage_offsets, lengths)
        # Torch copies into what a subclass wraps, which has no memory of its own.
        fits = str(target.dtype) == f"torch.{wanted.place.dtype}" and has_memory(target)
        if not parts_verify and lengths != shape:
            cut.append((wanted, target))
        elif start is not None and fits and target.is_contiguous() and wanted.name not in taken:
            taken.add(wanted.name)
            direct.append(_Direct(wanted.name, start, target.view(-1)))
        else:
            (cut if maps else copied).append((wanted, target))
    internals.detach_if_signed(
        [part for _, target in filled for part in plain_parts(target) if has_memory(part)]
    )
    counting = getattr(planner, "reading", nullcontext)
    if direct:
        names, starts, targets = map(list, zip(*direct, strict=True))
        with counting(reader):
            internals.load_ranges(names, starts, targets, None, verify, threads)
    for batch in _batches(copied):
        with counting(reader):
            _load_and_copy(reader, batch, verify, threads)
    for wanted, target in cut:
        with counting(reader):
            whole = _load(reader, [wanted.name], verify, threads)[wanted.name]
        part = narrow_tensor_by_index(whole, wanted.item.storage_offsets, wanted.item.lengths)
        _copy(wanted, target, part)
    for item, target in filled:
        planner.commit_tensor(item, target)
    values = [wanted for wanted in items if wanted.item.type == LoadItemType.BYTE_IO]
    if values:
        names = [wanted.name for wanted in values]
        loaded = _load(reader, names, verify, threads)
        for wanted in values:
            stored = loaded[wanted.name]
            if stored.dtype != torch.uint8 or stored.dim() != 1:
                raise errors.InvalidFormat(
                    f"tensor {quoted(wanted.name)} in {wanted.place.file!r} is {stored.dtype} "
                    f"{list(stored.shape)}, and must be the bytes of a value"
                )
            data = bytes(stored.numpy())
            planner.load_bytes(wanted.item, io.BytesIO(data))


def _load(reader: Any, names: list[str], verify: str, threads: int) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = reader.load(
        names, torch.device("cpu"), None, verify, False, threads
    )
    return loaded


def _start_of_run(
    shape: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]
) -> int | None:
    """Return the first element of a part that is one run of elements; ``None`` for others."""
    partial = [dim for dim, length in enumerate(lengths) if length != shape[dim]]
    if partial and math.prod(lengths[: partial[-1]]) != 1:
        return None
    start = 0
    for size, offset in zip(shape, offsets, strict=True):
        start = start * size + offset
    return start


def _batches(
    parts: Sequence[tuple[Wanted, torch.Tensor]],
) -> list[list[tuple[Wanted, torch.Tensor]]]:
    batches: list[list[tuple[Wanted, torch.Tensor]]] = []
    size = _BATCH
    for part in parts:
        if size >= _BATCH:
            batches.append([])
            size = 0
        batches[-1].append(part)
        size += part[1].numel() * part[1].itemsize
    return batches


def _load_and_copy(
    reader: Any, batch: Sequence[tuple[Wanted, torch.Tensor]], verify: str, threads: int
) -> None:
    names = [wanted.name for wanted, _ in batch]
    sliced = of_boxes((wanted.item.storage_offsets, wanted.item.lengths) for wanted, _ in batch)
    cpu = torch.device("cpu")
    loaded = reader.load_slices(names, *sliced[:5], cpu, None, verify, False, threads)
    for (wanted, target), tensor in zip(batch, loaded, strict=True):
        _copy(wanted, target, tensor)


def _copy(wanted: Wanted, target: torch.Tensor, loaded: torch.Tensor) -> None:
    name = wanted.item.dest_index.fqn
    try:
        if is_plain(target):
            with held([name], [target], "filled") as (own,):
                own.copy_(loaded)
        else:
            with torch.no_grad():
                target.copy_(loaded)
    except (AttributeError, NotImplementedError, TypeError) as error:
        raise errors.InvalidArgument(
            f"tensor {name!r} cannot be filled: it is {kind_of(target)}, "
            "into which torch cannot copy values: load a plain tensor"
        ) from error
