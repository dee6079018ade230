"""The functions of ``safetensors.torch``."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from tensorizer_ops import _core, errors
from tensorizer_ops._base.arguments import checked
from tensorizer_ops._base.devices import named_device
from tensorizer_ops._base.file_objects import label
from tensorizer_ops._base.internals import held_memory, reader_of
from tensorizer_ops._base.memory import fills_storage, is_plain, span
from tensorizer_ops._base.savable import fillable, held, plain_tensors
from tensorizer_ops._base.tables import shortened, tensors_in_words
from tensorizer_ops._base.targets import Target, to_uri
from tensorizer_ops._front.load_save import load_from, load_slices, save as _save

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]

SafetensorError = errors.Error

Device = torch.device | str | int

_BACKENDS = ("mmap", "pread")


@checked
def save_file(
    tensors: dict[str, torch.Tensor], filename: Target, metadata: dict[str, str] | None = None
) -> None:
    """Save tensors to a safetensors file, with the same bytes as the ``safetensors`` library.

    Raises:
        ValueError: a value is not a tensor, or is sparse or not contiguous.
        RuntimeError: tensors share memory; :func:`save_model` saves such models.
    """
    plain = _checked(tensors)
    _save(filename, plain, hashes="none", options={"format": "safetensors"}, metadata=metadata)


@checked
def save(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return the bytes of the file that :func:`save_file` writes."""
    return written(lambda place: save_file(tensors, place, metadata))


def written(write: Callable[[str], None]) -> bytes:
    """Return the bytes that a function writes to a place."""
    descriptor = os.memfd_create("safetensors")
    try:
        write(f"fd:{descriptor}")
        with open(descriptor, "rb", closefd=False) as stream:
            stream.seek(0)
            return stream.read()
    finally:
        os.close(descriptor)


@checked
def load_file(
    filename: Target, device: Device = "cpu", *, backend: str = "mmap"
) -> dict[str, torch.Tensor]:
    """Load all tensors of a file; ``backend="pread"`` loads copies instead of mapping the file."""
    with safe_open(filename, "pt", device, backend=backend) as opened:
        return opened.get_tensors()


@checked
def load(data: bytes) -> dict[str, torch.Tensor]:
    """Load all tensors of a file whose bytes are given."""
    if not data:
        raise errors.InvalidFormat("there are no bytes to load from")
    reader = reader_of(_core.buffer_source(data, 0), {})
    return load_from(reader, None, None, "cpu", None, "none", True, 0)


@checked
def save_model(
    model: torch.nn.Module,
    filename: Target,
    metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,
) -> None:
    """Save a module, and each tensor that several of its names share once.

    The metadata says for each name that is left out which one has its data.
    """
    state = model.state_dict(keep_vars=True)
    state = dict(zip(state, plain_tensors(state, state.values()), strict=True))
    texts = dict(metadata or {})
    for kept, others in _duplicates(state, preferred=()).items():
        for name in others:
            texts.setdefault(name, kept)
            del state[name]
    if force_contiguous:
        state = {name: _contiguous(name, tensor) for name, tensor in state.items()}
    try:
        save_file(state, filename, texts or metadata)
    except _NotContiguous as error:
        raise ValueError(f"{error}, or use save_model(..., force_contiguous=True)") from None


@checked
def load_model(
    model: torch.nn.Module,
    filename: Target,
    strict: bool = True,
    device: Device = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[set[str], list[str]]:
    """Load a file of :func:`save_model` into a module.

    Returns:
        The names that the file lacks, and those that the module lacks. Names that share a tensor
        count as one.

    Raises:
        RuntimeError: there are such names, unless ``strict`` is false.
    """
    state = load_file(filename, device, backend=backend)
    own = model.state_dict(keep_vars=True)
    duplicates = _duplicates(own, preferred=state)
    with held_memory([each for each in own.values() if isinstance(each, torch.Tensor)]):
        for name, tensor in own.items():
            if name in state and not is_lazy(tensor):
                fillable(name, tensor)
        missing, unexpected = map(list, model.load_state_dict(state, strict=False))
    for name in (name for others in duplicates.values() for name in others):
        if name in missing:
            missing.remove(name)
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        lines = [f"the state dict does not fit {type(model).__name__}:"]
        if missing:
            lines.append("    Missing key(s) in state_dict: " + _quoted(missing))
        if unexpected:
            lines.append("    Unexpected key(s) in state_dict: " + _quoted(unexpected))
        raise RuntimeError("\n".join(lines))
    return set(missing), unexpected


def _contiguous(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not is_plain(tensor):
        return tensor
    with held([name], [tensor]) as (own,):
        return own.contiguous()


class safe_open:
    """A file that is open for loading, usually as a context manager.

    Args:
        filename: a path or a URI, as for :func:`tensorizer_ops.load`.
        framework: ``"pt"``, or ``"np"`` for arrays of NumPy in place of tensors.
        device: the device of the tensors.
        backend: ``"mmap"`` gives tensors on the CPU that share pages with a local file, ``"pread"``
            copies.
    """

    @checked
    def __init__(
        self, filename: Target, framework: str, device: Device = "cpu", *, backend: str = "mmap"
    ) -> None:
        self._as_arrays = framework in ("np", "numpy")
        if not self._as_arrays and framework not in ("pt", "torch", "pytorch"):
            raise errors.InvalidArgument(
                f"framework is {framework!r}, and must be 'pt' or 'np'",
            )
        if backend not in _BACKENDS:
            raise errors.InvalidArgument(f"backend is {backend!r}, and must be 'mmap' or 'pread'")
        self._device = named_device(device)
        self._copy = backend == "pread"
        self._reader: Any = torch.classes.tensorizer.Reader(to_uri(filename), None)
        self._names: list[str] = self._reader.names()
        self._label = label(filename)

    def __repr__(self) -> str:
        state = "closed" if self._reader is None else tensors_in_words(len(self._names))
        return f"<tensorizer_ops.safetensors.safe_open of {self._label}: {state}>"

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    def keys(self) -> list[str]:
        """Return the names in alphabetical order."""
        self._open()
        return sorted(self._names)

    def offset_keys(self) -> list[str]:
        """Return the names in the order of the data."""
        listed = torch.classes.tensorizer._Internals(self._open()).list()
        ranges = zip(listed.data_offsets, listed.data_sizes, strict=True)
        places = dict(zip(self._names, ranges, strict=True))
        return sorted(self._names, key=places.__getitem__)

    def metadata(self) -> dict[str, str] | None:
        """Return the texts that were stored with the tensors, by key; ``None`` without metadata."""
        stored = torch.classes.tensorizer._Internals(self._open()).metadata()
        return None if stored is None else dict(stored)

    @checked
    def get_tensor(self, name: str) -> Any:
        return self._load([name])[name]

    @checked
    def get_slice(self, name: str) -> Slice:
        """Return a tensor to take a part of, such as ``get_slice("w")[:, ::8]``."""
        return Slice(self, name)

    def get_tensors(self) -> dict[str, Any]:
        return self._load(self.offset_keys())

    def _open(self) -> Any:
        if self._reader is None:
            raise errors.InvalidArgument("the file is closed")
        return self._reader

    def _load(self, names: list[str]) -> dict[str, Any]:
        loaded = load_from(self._open(), names, None, self._device, None, "none", self._copy, 0)
        return {name: self._given(name, tensor) for name, tensor in loaded.items()}

    def _given(self, name: str, tensor: torch.Tensor) -> Any:
        """Return a tensor as the framework has it."""
        return as_array(name, tensor) if self._as_arrays else tensor


class Slice:
    """A tensor of an open file, of which an index loads a part: only its bytes are read."""

    def __init__(self, opened: safe_open, name: str) -> None:
        self._opened = opened
        self._name = name
        whole = opened._open().load([name], torch.device("meta"))[name]
        self._shape, self._dtype = list(whole.shape), whole.dtype

    def __repr__(self) -> str:
        name, kind = shortened(repr(self._name)), self.get_dtype()
        return f"<tensorizer_ops.safetensors.Slice of {name}: {kind} {self._shape}>"

    def get_shape(self) -> list[int]:
        return list(self._shape)

    def get_dtype(self) -> str:
        """Return the name of the element type in the format, such as ``"F32"``."""
        return _core.SAFETENSORS_DTYPES[str(self._dtype).removeprefix("torch.")]

    def __getitem__(self, index: Any) -> Any:
        indices = index if isinstance(index, tuple) else (index,)
        if all(_is_plain(each) for each in indices) and indices.count(...) <= 1:
            try:
                opened, wanted = self._opened, {self._name: index}
                reader, device, copy = opened._open(), opened._device, opened._copy
                part = load_slices(reader, wanted, device=device, copy=copy)[self._name]
                return opened._given(self._name, part)
            except errors.InvalidArgument:
                # What torch says, if the index is to blame.
                torch.empty(self._shape, device="meta")[index]
                raise
        # Lists, tensors, None and bools can only be applied to the whole tensor.
        return self._opened.get_tensor(self._name)[index]


def as_array(name: str, tensor: torch.Tensor) -> Any:
    """Return the array that shares the memory of a tensor."""
    try:
        return tensor.numpy()
    except TypeError as error:
        raise TypeError(f"tensor {name!r} cannot be an array: {error}") from None


def _is_plain(index: object) -> bool:
    return index is ... or isinstance(index, slice) or type(index) is int


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in sorted(names))


class _NotContiguous(ValueError):
    pass


def _checked(given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return plain tensors.

    Raise for those that the ``safetensors`` library refuses, and this library would take.
    """
    if not isinstance(given, dict):
        raise ValueError(f"tensors is {type(given).__name__}, and must be a dict of tensors")
    tensors = dict(zip(given, plain_tensors(given, given.values()), strict=True))
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided:
            raise ValueError(f"tensor {name!r} is sparse, and cannot be saved: use to_dense()")
    for names in _shared(tensors):
        if len(names) > 1:
            raise RuntimeError(
                f"the tensors {_quoted(names)} share memory, and would no longer do so when they "
                "are loaded: save_model() saves one of them, or clone() them"
            )
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise _NotContiguous(f"tensor {name!r} is not contiguous: use contiguous()")
        if tensor.is_meta:
            raise RuntimeError(f"Cannot copy out of meta tensor {name!r}: it has no data")
    return tensors


def _shared(tensors: Mapping[str, torch.Tensor]) -> list[set[str]]:
    """Return the names in groups: tensors of a group overlap each other, directly or not."""
    by_storage: dict[Hashable, list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        where = span(tensor)
        if where is not None and where.storage is not None:
            by_storage.setdefault(where.storage, []).append((where.begin, where.end, name))
    groups: list[set[str]] = []
    for ranges in by_storage.values():
        last = -1
        for begin, end, name in sorted(ranges):
            if begin >= last:
                groups.append(set())
            groups[-1].add(name)
            last = max(last, end)
    return groups


def _duplicates(
    state: Mapping[str, torch.Tensor], preferred: Iterable[str]
) -> dict[str, list[str]]:
    """Return, for each name to keep, the names that share its tensor, of a preferred name if any.

    Raises ``RuntimeError`` if none of the tensors that share memory is all of it.
    """
    duplicates = {}
    for names in _shared(state):
        if len(names) == 1:
            continue
        whole = {name for name in names if fills_storage(state[name])}
        if not whole:
            raise RuntimeError(
                f"the tensors {_quoted(names)} are parts of memory that none of them is all of, so "
                "that there is none to save in place of the others: clone() them"
            )
        kept = min(whole.intersection(preferred) or whole)
        duplicates[kept] = sorted(names - {kept})
    return duplicates
