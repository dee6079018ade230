"""Hashes of files, and what a copy of a file to or from a server reports."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from tensorizer_ops._base.folder import Folder
from tensorizer_ops._base.progress import Progress, reported
from tensorizer_ops._base.targets import Target
from tensorizer_ops._front.inspection import File

_MODEL_FILES = (".tensors", ".safetensors")
# Bytes that are read at a time, and those that are fetched ahead.
_PIECE = 4 << 20
_READ_AHEAD = 16 << 20

# Returns what shows the progress of the work that a text names, such as "sending x".
Show = Callable[[str], Progress | None]


class Copied(NamedTuple):
    """A file of a folder that is complete."""

    name: str
    size: int
    seconds: float | None  # None if it was there already
    checked: str  # which hashes were compared


class Hashing:
    """Hashes a file while it is read, and writes it to another one.

    ``kept`` is the kind of the hash and its expected value; ``None`` for what the server keeps.
    """

    def __init__(self, folder: Folder, name: str, kept: tuple[str, str] | None) -> None:
        self._source = folder.open(name, _READ_AHEAD, whole=True)
        known = kept or self._source.digest()
        self.kind = known[0] if known else "SHA-256"
        self.expected = known[1] if known else None
        self._is_cancelled = False
        self.done = 0

    def progress(self) -> tuple[int, int]:
        return self.done, self._source.size() or 0

    def cancel(self) -> None:
        self._is_cancelled = True

    def run(self, copy: BinaryIO | None) -> str:
        """Read the file, and return its digest."""
        digest = hashlib.sha256()
        if self.kind != "SHA-256":  # that of git
            start = f"blob {self._source.size()}\0".encode()
            digest = hashlib.sha1(start, usedforsecurity=False)
        piece = memoryview(bytearray(_PIECE))
        while not self._is_cancelled and (count := self._source.read_into(self.done, piece)):
            digest.update(piece[:count])
            if copy is not None:
                copy.write(piece[:count])
            self.done += count
        return digest.hexdigest()


def hash_of(folder: Folder, name: str, kind: str, show: Show) -> str:
    """Return the hash of a file in a folder."""
    job = Hashing(folder, name, (kind, ""))
    with reported(job, show(f"comparing {name}")):
        return job.run(None)


def has_right_hashes(name: str, place: Target, show: Show) -> bool:
    """Compare a file of tensors with its own hashes; return whether it has some."""
    if not name.endswith(_MODEL_FILES):
        return False
    file = File(place)
    if file.format().encrypted or not file.kinds_of_hashes():
        return False
    file.verify("all", progress=show(f"verifying {name}"))
    return True
