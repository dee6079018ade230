"""Reads names, shapes, offsets and digests of a file, and verifies it, without torch."""

from __future__ import annotations

import contextlib
import operator
from typing import TYPE_CHECKING, NamedTuple

from tensorizer_ops import _core, errors
from tensorizer_ops._base.arguments import checked
from tensorizer_ops._base.options import Options, Verify, as_pairs
from tensorizer_ops._base.progress import Progress, reported
from tensorizer_ops._base.targets import Source, Target, place_of, to_uri
from tensorizer_ops._front.info import Info, StoredTensor
from tensorizer_ops._registration.register import register_with_torch

if TYPE_CHECKING:
    from tensorizer_ops._front.reader import Reader


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


class File(_core.File):
    """A file whose index has been read. Thread-safe unless the file is a stream (a pipe, stdin).

    Raises the exceptions of :func:`tensorizer_ops.load`. ``csrc/python/core/module.cpp`` describes
    the methods that are not here.
    """

    def __init__(
        self, uri: Target, options: Options | None = None, in_any_order: bool = False
    ) -> None:
        """Refuse a stream before it is read, with ``in_any_order``."""
        super().__init__(to_uri(uri), as_pairs(options), in_any_order)

    def index(self) -> list[StoredTensor]:
        return [StoredTensor._make(tensor) for tensor in super().index()]

    def format(self) -> Format:
        return Format._make(super().format())

    def saved_digests(self, name: str) -> Digests:
        """Read the header of a tensor and return the digests in it."""
        return Digests._make(super().saved_digests(name))

    def digest(self, threads: int = 0, version: int = 1, listed: bool = False) -> str:
        """Return the digest of the model in the file: of its data, or as the file lists it."""
        return super().digest(operator.index(threads), operator.index(version), listed)

    def kinds_of_hashes(self) -> tuple[str, ...]:
        """Return the kinds of hashes in the file; none if a stream has passed them."""
        with contextlib.suppress(errors.InvalidArgument):
            return tuple(self.hashes()[1])
        return ()

    def cost_of_key(self) -> tuple[int, int] | None:
        """Return the passes and the memory that derive the key of the file from a passphrase."""
        for name in self.names()[:1]:
            with contextlib.suppress(errors.InvalidArgument):  # a stream has passed the header
                return self.key_cost(name)
        return None

    def verify(
        self, verify: str = "all", threads: int | None = None, progress: Progress | None = None
    ) -> None:
        """Compare all data with the hashes in the file; the error names everything that differs."""
        if not isinstance(verify, str):
            raise TypeError(f"verify is {type(verify).__name__}, and must be str")
        with reported(self, progress):
            super().verify(verify, operator.index(threads or 0))


def info_of(file: File) -> Info:
    """Return what an open file holds."""
    form = file.format()
    return Info(
        form.name,
        form.version,
        form.encrypted,
        form.authenticated,
        file.metadata(),
        file.index(),
        file.kinds_of_hashes(),
        file.digest_chunk(),
        file.cost_of_key() if form.encrypted else None,
    )


@checked
def metadata(uri: Source, *, options: Options | None = None) -> dict[str, str]:
    """Return the texts that were stored with the tensors of a file, by key.

    Reads the index of the file, and needs torch only for a file object. Raises the exceptions of
    :func:`tensorizer_ops.load`.

    Args:
        uri: as for :func:`tensorizer_ops.load`.
        options: as for :func:`tensorizer_ops.load`.
    """
    return _opened(uri, options).metadata()


@checked
def names(uri: Source, *, options: Options | None = None) -> list[str]:
    """Return the names of the tensors in a file, in its order. Otherwise like :func:`metadata`."""
    file = _opened(uri, options)
    return file.names() if isinstance(file, File) else list(file)


def info(uri: Target, *, options: Options | None = None) -> Info:
    """Return what a file holds: its format, its metadata, its hashes and a list of its tensors.

    Reads the index of the file and the header of one tensor, and needs no torch. Raises the
    exceptions of :func:`tensorizer_ops.load`.

    Args:
        uri: a path or a URI, as for :func:`tensorizer_ops.load`.
        options: as for :func:`tensorizer_ops.load`.
    """
    place = place_of(uri)
    if not isinstance(place, str):
        raise TypeError(
            f"uri is {type(uri).__name__}, and must be a path or a URI: tensorizer_ops.Reader "
            "takes file objects"
        )
    return info_of(File(place, options))


@checked
def verify(
    uri: Source,
    *,
    verify: Verify = "all",
    threads: int = 0,
    options: Options | None = None,
    progress: Progress | None = None,
) -> None:
    """Compare all tensors of a file with their saved hashes. Keeps no tensor in memory.

    Needs torch only for a file object.

    Args:
        uri: as for :func:`tensorizer_ops.load`.
        verify: as for :func:`tensorizer_ops.load`.
        threads: as for :func:`tensorizer_ops.load`.
        options: as for :func:`tensorizer_ops.load`.
        progress: as for :func:`tensorizer_ops.load`.

    Raises:
        tensorizer_ops.errors.HashMismatch: data differs from what was saved. It names everything
            that is damaged.
        ValueError: the file is malformed, or a tensor was saved without hashes.
    """
    _opened(uri, options).verify(verify, threads=threads or None, progress=progress)


def _opened(source: Source, options: Options | None) -> File | Reader:
    """Open a file; a file object with torch, as the part of the library that calls its methods."""
    place = place_of(source)
    if isinstance(place, str):
        return File(place, options)
    register_with_torch()
    from tensorizer_ops._front import reader

    return reader.Reader(place, options=options)
