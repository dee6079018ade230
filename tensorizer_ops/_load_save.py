"""The typed functions that load and save tensors."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from tensorizer_ops import _python, errors
from tensorizer_ops._compile import traced
from tensorizer_ops._options import Hashes, Options, Verify, as_pairs, as_text
from tensorizer_ops._progress import Progress, reported
from tensorizer_ops._slices import Slices, resolve, without
from tensorizer_ops._targets import Target, to_uri


def as_dict(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    try:
        return dict(tensors)
    except (TypeError, ValueError):
        if isinstance(tensors, Mapping):
            raise
        raise TypeError(
            f"tensors is {type(tensors).__name__}, and must be a dict of tensors, such as a "
            "state_dict()"
        ) from None


def first_use(device: torch.device) -> None:
    """Initialize a device as torch does; raise torch's own error if the device does not exist."""
    torch.empty(0, device=device)


def load(
    uri: Target,
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
            ``https://…``, ``s3://…``, ``gs://…``, ``redis://…``, ``rediss://…`` or ``unix://…``.
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
            draws a bar with tqdm.

    Returns:
        The tensors by name, in the order of the file or of ``names``. Those that were saved as one,
        with the option ``share``, share memory.

    Raises:
        FileNotFoundError, PermissionError, OSError: the file cannot be read.
        KeyError: a name is not in the file.
        ValueError: the file is malformed, or an argument is invalid.
        tensorizer_ops.errors.HashMismatch: the data differs from what was saved.
    """
    if isinstance(names, str):  # a string would be taken for a list of one-character names
        raise TypeError("names is str, and must be a list of names")
    wanted = None if names is None else list(names)
    given = None if options is None else as_text(options)
    if torch.compiler.is_compiling():
        _refuse_in_graph(progress)
        return traced.load(
            to_uri(uri),
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
    where = torch.get_default_device() if device is None else torch.device(device)
    first_use(where)
    if slices is not None and torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        raise errors._new(
            errors.InvalidArgument,
            "slices= is not supported in torch.jit.trace: call torch.ops.tensorizer.load_slices",
        )
    if progress or slices is not None:
        reader = torch.classes.tensorizer.Reader(to_uri(uri), given)
        with reported(reader, progress) if progress else contextlib.nullcontext():
            if slices is not None:
                return _load_parts(reader, wanted, slices, where, dtype, verify, copy, threads)
            watched: dict[str, torch.Tensor] = reader.load(
                wanted, where, dtype, verify, copy, threads
            )
        return watched
    loaded: dict[str, torch.Tensor] = torch.ops.tensorizer.load(
        to_uri(uri),
        names=wanted,
        device=where,
        dtype=dtype,
        verify=verify,
        copy=copy,
        threads=threads,
        options=given,
    )
    return loaded


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
    """Load parts of tensors from an open ``torch.classes.tensorizer.Reader``.

    Like :func:`load` with the names in ``slices``, for programs that load several times from one
    file, whose index is then read once.
    """
    where = torch.get_default_device() if device is None else torch.device(device)
    first_use(where)
    return _load_parts(reader, list(slices), slices, where, dtype, verify, copy, threads)


def _load_parts(
    reader: Any,
    names: list[str] | None,
    slices: Slices,
    device: torch.device,
    dtype: torch.dtype | None,
    verify: str,
    copy: bool,
    threads: int,
) -> dict[str, torch.Tensor]:
    known = reader.names() if names is None else names
    sliced = resolve(known, slices, reader.shape)
    tensors = reader.load_slices(known, *sliced[:5], device, dtype, verify, copy, threads)
    return dict(zip(known, without(tensors, sliced.dropped), strict=True))


def save(
    uri: Target,
    tensors: Mapping[str, torch.Tensor],
    *,
    hashes: Hashes = "all",
    threads: int = 0,
    options: Options | None = None,
    metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> None:
    """Save tensors to a ``.tensors`` file, or to a safetensors file if its name ends so.

    The file appears under its name once it is completely written. Until then, and if the save
    fails, a previous file of that name stays unchanged.

    Args:
        uri: as for :func:`load`; missing directories are created.
        tensors: the tensors by name, for example a ``state_dict()``. Views, non-contiguous tensors
            and tensors that share memory are each saved in full, unless ``share`` says otherwise.
        hashes: which hashes to write with every tensor.
        threads: how many threads compute; 0 means one for every CPU that the process may use.
        options: ``fsync`` (``"true"`` waits until the file is on stable storage),
            ``memory_ceiling`` (bytes of memory to use beyond the tensors), ``staging`` (bytes of
            pinned memory for copies from a device), ``key`` and others that encrypt
            (``docs/security.md``), ``format`` (``"tensors"`` or ``"safetensors"``, whatever the
            name of the target), ``share`` (``"true"`` stores tensors that are the same memory once;
            other readers then miss all names but the first), ``max_shard_size`` (bytes of tensors
            in one safetensors file; a larger model becomes several), and those for servers
            (``docs/remote.md``).
        metadata: texts to store with the tensors, which :func:`tensorizer_ops.metadata` returns.
        progress: as for :func:`load`.

    Raises:
        PermissionError, OSError: the file cannot be written.
        TypeError: ``tensors`` is not a mapping.
        ValueError: the format cannot store one of the tensors or names.
    """
    given = None if options is None else as_text(options)
    kept = None if metadata is None else dict(metadata)
    if torch.compiler.is_compiling():
        _refuse_in_graph(progress)
        traced.save(
            to_uri(uri), tensors, hashes=hashes, threads=threads, options=given, metadata=kept
        )
        return
    named = as_dict(tensors)
    if progress:
        job = _python.BackgroundSave()
        with reported(job, progress):
            values = list(named.values())
            pairs = as_pairs(given)
            run_save(job, to_uri(uri), list(named), values, hashes, threads, pairs, kept)
        return
    _refuse_others(named, named.values())
    _refuse_other_metadata(kept)
    torch.ops.tensorizer.save(
        to_uri(uri), named, hashes=hashes, threads=threads, options=given, metadata=kept
    )


def run_save(
    job: _python.BackgroundSave,
    uri: str,
    names: list[str],
    tensors: list[torch.Tensor],
    hashes: str,
    threads: int,
    options: list[tuple[str, str]],
    metadata: Mapping[str, str] | None,
) -> None:
    """Check the types of the arguments and run a job.

    The binding would print all of its arguments, secrets included, if one had the wrong type.
    """
    _refuse_others(names, tensors)
    _refuse_other_metadata(metadata)
    if not isinstance(hashes, str):
        raise TypeError(f"hashes is {type(hashes).__name__}, and must be str")
    pairs = None if metadata is None else list(metadata.items())
    job.run(uri, names, tensors, hashes, operator.index(threads), options, pairs)


def _refuse_other_metadata(metadata: Mapping[str, str] | None) -> None:
    """Raise for metadata that is not text."""
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata has {key!r}: {value!r}, and its keys and values must be str")
        if not _is_unicode(key + value):
            raise errors._new(
                errors.InvalidArgument,
                f"the metadata cannot be saved: {key!r} or its value has half of a surrogate pair, "
                "which is not Unicode",
            )


def _is_unicode(text: str) -> bool:
    """Return whether a text has no half of a surrogate pair, as ``os.fsdecode()`` may make."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_others(names: Iterable[str], tensors: Iterable[torch.Tensor]) -> None:
    """Raise for a value that is not a tensor or a name that is not a text.

    Torch's own error would print all of the tensors.
    """
    for name, tensor in zip(names, tensors, strict=True):
        if not isinstance(name, str):
            raise errors._new(
                errors.InvalidArgument, f"a name is {type(name).__name__}, and must be str"
            )
        if not _is_unicode(name):
            raise errors._new(
                errors.InvalidArgument,
                f"tensor {name!r} cannot be saved: its name has half of a surrogate pair, which is "
                "not Unicode",
            )
        if not isinstance(tensor, torch.Tensor):
            raise errors._new(
                errors.InvalidArgument,
                f"tensor {name!r} cannot be saved: it is {type(tensor).__name__}",
            )
        refuse_uninitialized(name, tensor)


def refuse_uninitialized(name: str, tensor: torch.Tensor) -> None:
    """Raise for an uninitialized tensor of a lazy module, which the ops would take for empty."""
    if is_lazy(tensor):
        raise errors._new(
            errors.InvalidArgument,
            f"tensor {name!r} cannot be saved: it is not initialized until its module runs",
        )


def _refuse_in_graph(progress: Progress | None) -> None:
    if progress:
        raise errors._new(errors.InvalidArgument, "progress= is not supported in a compiled graph")
