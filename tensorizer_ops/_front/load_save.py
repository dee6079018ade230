"""The typed functions that load and save tensors."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import check_names, checked, wrong
from tensorizer_ops._base.devices import first_use, named_device
from tensorizer_ops._base.file_objects import Destination, open_source
from tensorizer_ops._base.internals import is_fake, is_traced, unseen
from tensorizer_ops._base.options import (
    Hashes,
    Metadata,
    Options,
    SecretOptions,
    Verify,
    as_text,
    texts_of,
)
from tensorizer_ops._base.progress import Progress, reported
from tensorizer_ops._base.savable import as_dict, plain_tensors, refuse_other_metadata
from tensorizer_ops._base.slices import Slices, resolve, without
from tensorizer_ops._base.targets import Sink, Source, place_of
from tensorizer_ops._compile import traced


@checked
def load(
    uri: Source,
    *,
    names: Sequence[str] | None = None,
    slices: Slices | None = None,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    verify: Verify = "none",
    copy: bool = False,
    threads: int = 0,
    options: Options | None = None,
    progress: Progress | None = None,
) -> dict[str, torch.Tensor]:
    """Load tensors from a ``.tensors`` or safetensors file.

    Args:
        uri: a path, ``fd:N`` for an open descriptor (pipes included), or a URI: ``file://…``,
            ``https://…``, ``s3://…``, ``gs://…``, ``az://…``, ``redis://…``, ``rediss://…`` or
            ``unix://…``.
            Also a binary file object, read from its current position, a ``bytearray`` or a
            ``memoryview``.
            Of a safetensors model in several files, the index or the folder.
        names: the tensors to load, in this order; by default every tensor in the file.
        slices: the parts to load of some tensors, by name, each an index as in ``tensor[index]``:
            slices, integers, ``...`` and tuples of them. Little more than these parts is read.
            Tensors without an entry are loaded in whole.
        device: the device of the returned tensors; torch's default device if omitted.
        dtype: the type that real floating-point tensors are cast to; other tensors keep theirs.
        verify: ``"crc32"`` checks the CRC32 of every tensor, ``"all"`` every hash that was saved;
            ``"none"``, the default, trusts the file. Parts of tensors are verified by the digests
            of chunks, which ``hashes="chunked"`` saves.
        copy: tensors on the CPU share pages with the file unless this is true. Writing to such
            tensors never changes the file, but changing the file in place changes the tensors, and
            truncating it in place kills a process that then touches them.
        threads: how many threads compute; 0 means one for every CPU that the process may use.
        options: ``memory_ceiling`` (bytes of memory to use beyond the tensors), ``staging`` (bytes
            of pinned memory for copies to a device), ``key`` and others for encrypted files
            (``docs/security.md``), and those for servers (``docs/remote.md``).
        progress: called ten times a second from another thread with two numbers: the bytes moved
            so far and the bytes to move in all. An exception that it raises ends the load. ``True``
            draws a bar on a terminal.

    Returns:
        The tensors by name, in the order of the file or of ``names``. Those that were saved as one,
        with the option ``share``, share memory.

    Raises:
        FileNotFoundError, PermissionError, OSError: the file cannot be read.
        KeyError: a name is not in the file.
        ValueError: the file is malformed, or an argument is invalid.
        tensorizer_ops.errors.HashMismatch: the data differs from what was saved.
    """
    wanted = None if names is None else list(names)
    given = None if options is None else as_text(options)
    if torch.compiler.is_compiling():
        return traced.load(
            _uri_in_graph(uri, progress),
            names=wanted,
            slices=slices,
            # A graph cannot read the default device, but an empty tensor made in it has that one.
            device=torch.empty(0).device if device is None else torch.device(device),
            dtype=dtype,
            verify=verify,
            copy=copy,
            threads=threads,
            options=given,
        )
    where = torch.get_default_device() if device is None else named_device(device)
    first_use(where)
    if slices is not None and torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        raise errors.InvalidArgument(
            "slices= is not supported in torch.jit.trace: call torch.ops.tensorizer.load_slices",
        )
    place = place_of(uri)
    if progress or slices is not None or not isinstance(place, str):
        opened = open_source(place, given)
        count = threads or opened.threads
        with reported(opened.reader, progress):
            return load_from(opened.reader, wanted, slices, where, dtype, verify, copy, count)
    check_names("names", wanted or ())
    loaded: dict[str, torch.Tensor] = torch.ops.tensorizer.load(
        place,
        names=wanted,
        device=where,
        dtype=dtype,
        verify=verify,
        copy=copy,
        threads=threads,
        options=given,
    )
    return loaded


@checked
def load_slices(
    reader: Any,
    slices: Slices,
    *,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    verify: Verify = "none",
    copy: bool = False,
    threads: int = 0,
) -> dict[str, torch.Tensor]:
    """Load parts of tensors from an open file, whose index is read once for several loads.

    Like :func:`load` with the names in ``slices``.

    Args:
        reader: a :class:`Reader`, or a ``torch.classes.tensorizer.Reader``.
    """
    opened = getattr(reader, "script_object", reader)
    if not hasattr(opened, "load_slices"):
        raise wrong("reader", reader, "a Reader or a torch.classes.tensorizer.Reader")
    return load_from(opened, list(slices), slices, device, dtype, verify, copy, threads)


def load_from(
    reader: Any,
    names: Sequence[str] | None,
    slices: Slices | None,
    device: torch.device | str | int | None,
    dtype: torch.dtype | None,
    verify: str,
    copy: bool,
    threads: int,
) -> dict[str, torch.Tensor]:
    """Load from an open ``torch.classes.tensorizer.Reader``, with the arguments of :func:`load`.

    Under ``FakeTensorMode``, the tensors are fake.
    """
    wanted = None if names is None else list(names)
    check_names("names", wanted or ())
    where = torch.get_default_device() if device is None else named_device(device)
    first_use(where)
    if is_fake():
        with torch.utils._python_dispatch._disable_current_modes():
            shapes = load_from(reader, wanted, slices, "meta", dtype, "none", False, threads)
        return {
            name: torch.empty(shape.shape, dtype=shape.dtype, device=where)
            for name, shape in shapes.items()
        }
    if slices is None:
        loaded: dict[str, torch.Tensor] = reader.load(wanted, where, dtype, verify, copy, threads)
        return loaded
    known = reader.names() if wanted is None else wanted
    sliced = resolve(known, slices, reader.shape)
    tensors = reader.load_slices(known, *sliced[:5], where, dtype, verify, copy, threads)
    return dict(zip(known, without(tensors, sliced.dropped), strict=True))


@checked
def save(
    uri: Sink,
    tensors: Mapping[str, torch.Tensor],
    *,
    hashes: Hashes = "chunked",
    threads: int = 0,
    options: Options | None = None,
    metadata: Metadata | None = None,
    progress: Progress | None = None,
) -> None:
    """Save tensors to a ``.tensors`` file, or to a safetensors file if its name ends so.

    The file appears under its name once it is completely written. Until then, and if the save
    fails, a previous file of that name stays unchanged.

    Args:
        uri: as for :func:`load`; missing directories are created. A binary file object is written
            from its current position, and left at the end of the file. Its name does not matter.
        tensors: the tensors by name, for example a ``state_dict()``. Views, non-contiguous tensors
            and tensors that share memory are each saved in full, unless ``share`` says otherwise.
        hashes: which hashes to write with every tensor.
        threads: how many threads compute; 0 means one for every CPU that the process may use.
        options: ``fsync`` (``"true"`` waits until the file is on stable storage),
            ``memory_ceiling`` (bytes of memory to use beyond the tensors), ``staging`` (bytes of
            pinned memory for copies from a device), ``key`` and others that encrypt
            (``docs/security.md``), ``format`` (``"tensors"`` or ``"safetensors"``, whatever the
            name of the target; by default its ending decides), ``share`` (``"true"`` stores tensors
            that are the same memory once; other readers then miss all names but the first),
            ``max_shard_size`` (bytes of tensors in one safetensors file; a larger model becomes
            several), and those for servers (``docs/remote.md``).
        metadata: texts to store with the tensors, which :func:`tensorizer_ops.metadata` returns.
        progress: as for :func:`load`.

    Raises:
        PermissionError, OSError: the file cannot be written.
        TypeError: ``tensors`` is not a mapping.
        ValueError: the format cannot store one of the tensors or names.
    """
    request = save_request(hashes, threads, options, metadata)
    if torch.compiler.is_compiling():
        traced.save(_uri_in_graph(uri, progress), tensors, **request)
        return
    named, place = as_dict(tensors), place_of(uri)
    if progress or not isinstance(place, str):
        job = torch.classes.tensorizer._BackgroundSave()
        with reported(job, progress):
            run_save(job, place, list(named), list(named.values()), request)
        return
    if is_fake():
        raise errors.InvalidArgument(
            "nothing can be saved under FakeTensorMode, where tensors have no values: save outside "
            "of it"
        )
    plain = plain_tensors(named, named.values(), traced=is_traced())
    refuse_other_metadata(request["metadata"])
    torch.ops.tensorizer.save(place, dict(zip(named, plain, strict=True)), **request)


class SaveRequest(TypedDict):
    """How tensors are saved: the keyword arguments of ``torch.ops.tensorizer.save``."""

    hashes: Hashes
    threads: int
    options: dict[str, str] | None
    metadata: dict[str, str] | None


def save_request(
    hashes: Hashes, threads: int, options: Options | None, metadata: Metadata | None
) -> SaveRequest:
    given = None if options is None else as_text(options)
    kept = texts_of(metadata)
    return {"hashes": hashes, "threads": threads, "options": given, "metadata": kept}


def run_save(
    job: Any,
    place: Sink,
    names: list[str],
    tensors: list[torch.Tensor],
    request: SaveRequest,
    dtype: torch.dtype | None = None,
) -> None:
    """Check names, tensors and metadata, and run a job. ``dtype`` is that of a load."""
    plain = plain_tensors(names, tensors)
    refuse_other_metadata(request["metadata"])
    target = Destination(place, in_order=True)
    options = SecretOptions(as_text({**target.options, **(request["options"] or {})}))
    threads = operator.index(request["threads"]) or target.threads
    sink = target.sink() if target.uri is None else None
    number = None if sink is None else sink.number
    uri, hashes, metadata = target.uri or "", request["hashes"], request["metadata"]
    try:
        unseen(job.run, uri, number, names, plain, hashes, threads, options, metadata, dtype)
        target.finish()
        target.synchronize()
    finally:
        target.discard()


def _uri_in_graph(place: object, progress: Progress | None) -> str:
    """Return the URI of a load or save in a graph; raise for what a graph cannot do."""
    if place is None or isinstance(place, Mapping | int):
        raise wrong("uri", place, "str or os.PathLike")
    if progress:
        raise errors.InvalidArgument("progress= is not supported in a compiled graph")
    uri = place_of(place)
    if not isinstance(uri, str):
        raise errors.InvalidArgument(
            "file objects are not supported in a compiled graph: give a path or a URI",
        )
    return uri
