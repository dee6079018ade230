"""Reads names, shapes, offsets and digests of a file, without torch."""

from __future__ import annotations

import operator
from typing import NamedTuple

from tensorizer_ops import _core
from tensorizer_ops._options import Options, as_pairs
from tensorizer_ops._targets import Target, to_uri


class StoredTensor(NamedTuple):
    """The index entry of one tensor."""

    name: str
    dtype: str | None  # torch's name; None in a stream if only the tensor's header has it
    shape: tuple[int, ...]
    header_offset: int
    data_offset: int
    data_size: int
    memory_size: int


class Format(NamedTuple):
    """How a file stores its tensors."""

    name: str  # "tensors" or "safetensors"
    version: int  # of the format; 0 if it has no versions
    encrypted: bool
    authenticated: bool  # whether a key authenticates its index
    keeps_digests: bool  # whether it stores its tensors' digests, which the model's is made of


class Digests(NamedTuple):
    """The saved digests of one tensor; None for a digest that was not saved."""

    crc32: bytes | None
    sha256: bytes | None


class File:
    """A file whose index has been read. Thread-safe unless the file is a stream (a pipe, stdin).

    Raises the exceptions of :func:`tensorizer_ops.load`.
    """

    def __init__(self, uri: Target, options: Options | None = None) -> None:
        self._file = _core.File(to_uri(uri), as_pairs(options))

    def names(self) -> list[str]:
        return self._file.names()

    def index(self) -> list[StoredTensor]:
        return [StoredTensor._make(tensor) for tensor in self._file.index()]

    def format(self) -> Format:
        return Format._make(self._file.format())

    def metadata(self) -> dict[str, str]:
        """Return the texts that were stored with the tensors, by key."""
        return self._file.metadata()

    def saved_digests(self, name: str) -> Digests:
        """Read the header of a tensor and return the digests in it."""
        return Digests._make(self._file.saved_digests(name))

    def digest(self, threads: int = 0, version: int = 1, listed: bool = False) -> str:
        """Return the digest of the model in the file: of its data, or as the file lists it."""
        return self._file.digest(operator.index(threads), operator.index(version), listed)


def metadata(uri: Target, *, options: Options | None = None) -> dict[str, str]:
    """Return the texts that were stored with the tensors of a file, by key.

    Reads the index of the file and needs no torch. Raises the exceptions of
    :func:`tensorizer_ops.load`.
    """
    return File(uri, options).metadata()
