"""The tensors of a file one after another, for loaders that take an iterator of weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Literal

import torch

from tensorizer_ops._base.arguments import check_names, checked
from tensorizer_ops._base.devices import named_device
from tensorizer_ops._base.file_objects import open_source
from tensorizer_ops._base.internals import is_fake
from tensorizer_ops._base.job import Job
from tensorizer_ops._base.options import Options, Verify, memory_ceiling
from tensorizer_ops._base.targets import Source
from tensorizer_ops._front.load_save import load_from


@checked
def iterate(
    uri: Source,
    *,
    names: Sequence[str] | None = None,
    order: Literal["file", "names"] = "file",
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    verify: Verify = "none",
    copy: bool = False,
    threads: int = 0,
    options: Options | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and the tensor of each, and load the next ones while they are used.

    Memory is bounded: besides the tensors that the caller keeps, those that are yielded next and
    those that are loaded meanwhile take as much as the option ``memory_ceiling``, or as two tensors
    if these are larger. To break off, close the iterator or forget it. Use it from one thread at a
    time. The file is open from this call until the iterator ends.

    Args:
        uri: as for :func:`tensorizer_ops.load`.
        names: the tensors to yield; by default every tensor in the file.
        order: ``"file"`` yields the tensors as they follow in the file, which is fastest;
            ``"names"`` as they follow in ``names``.
        device, dtype, verify, copy, threads, options: as for :func:`tensorizer_ops.load`.
    """
    wanted = None if names is None else list(names)
    check_names("names", wanted or ())
    opened = open_source(uri, options)
    where = torch.get_default_device() if device is None else named_device(device)
    try:
        batches = _batches(opened.reader, wanted, order, dtype, memory_ceiling(options) // 2)
    except BaseException:
        opened.reader.close()
        raise
    load = partial(
        load_from,
        opened.reader,
        slices=None,
        device=where,
        dtype=dtype,
        verify=verify,
        copy=copy,
        threads=threads or opened.threads,
    )
    if is_fake():  # on this thread, and not on one that loads
        with closing(opened.reader):
            return iter(load([name for batch in batches for name in batch]).items())
    return _yielded(opened.reader, batches, load)


def _batches(
    reader: Any,
    names: Sequence[str] | None,
    order: str,
    dtype: torch.dtype | None,
    most: int,
) -> list[list[str]]:
    """Return the names in groups of tensors that have at most ``most`` bytes, or are one."""
    every = reader.names()
    internals = torch.classes.tensorizer._Internals(reader)
    listed = internals.list()
    places = dict(zip(every, listed.data_offsets, strict=True))
    sizes = dict(zip(every, listed.memory_sizes, strict=True))
    if dtype is not None:
        for name in every:
            kind: torch.dtype = getattr(torch, internals.type_name(name))
            if kind.is_floating_point:
                sizes[name] = sizes[name] // kind.itemsize * max(dtype.itemsize, kind.itemsize)
    chosen = list(every if names is None else names)
    for name in chosen:
        if name not in sizes:
            reader.shape(name)  # raises the error
    if order == "file":  # that of the data, not of the list
        chosen.sort(key=places.__getitem__)
    batches: list[list[str]] = []
    size = most
    for name in chosen:
        if not batches or size + sizes[name] > most:
            batches.append([])
            size = 0
        batches[-1].append(name)
        size += sizes[name]
    return batches


def _yielded(
    reader: Any, batches: list[list[str]], load: Any
) -> Iterator[tuple[str, torch.Tensor]]:
    job: Job[dict[str, torch.Tensor]] | None = None
    try:
        for number in range(len(batches)):
            tensors = job.result() if job else load(batches[0])
            following = batches[number + 1 : number + 2]
            job = Job(partial(load, *following)) if following else None
            while tensors:
                # Not kept here while the caller uses it.
                name = next(iter(tensors))
                yield name, tensors.pop(name)
    finally:
        if job is not None:
            reader.cancel()
            job.join()
        reader.close()
