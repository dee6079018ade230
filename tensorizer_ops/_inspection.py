"""What a file holds, without torch: names, shapes, offsets and digests."""

from __future__ import annotations

import operator
from typing import NamedTuple

from tensorizer_ops import _core
from tensorizer_ops._options import Options, as_pairs
from tensorizer_ops._targets import Target, to_uri


class StoredTensor(NamedTuple):
    """What the index says of one tensor."""

    name: str
    dtype: str | None  # as torch names it; None where only the data of a stream would tell
    shape: tuple[int, ...]
    header_offset: int
    data_offset: int
    data_size: int
    memory_size: int


class Metadata(NamedTuple):
    """What a file says of itself."""

    version: int
    encrypted: bool
    authenticated: bool  # its index, by a key
    keeps_digests: bool  # those of its tensors' data, which its own digest is made of


class Digests(NamedTuple):
    """What was saved of one tensor; None where it was not."""

    crc32: bytes | None
    sha256: bytes | None


class File:
    """A file whose index has been read. Thread-safe, except for one whose bytes come once.

    Errors are those of :func:`tensorizer_ops.load`.
    """

    def __init__(self, uri: Target, options: Options | None = None) -> None:
        self._file = _core.File(to_uri(uri), as_pairs(options))

    def names(self) -> list[str]:
        return self._file.names()

    def index(self) -> list[StoredTensor]:
        return [StoredTensor._make(tensor) for tensor in self._file.index()]

    def metadata(self) -> Metadata:
        return Metadata._make(self._file.metadata())

    def saved_digests(self, name: str) -> Digests:
        """Read the header of a tensor, for the digests that it holds."""
        return Digests._make(self._file.saved_digests(name))

    def digest(self, threads: int = 0) -> str:
        """Read all of the file, and return the digest of the model in it."""
        return self._file.digest(operator.index(threads))
