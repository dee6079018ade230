"""The list of the steps of a chain.

Two files have it, in their metadata, so one that is damaged costs nothing. Whatever else is in the
folder is no part of the chain.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from typing import Any

from tensorizer_ops import errors
from tensorizer_ops._base.folder import SIGNATURE, Folder, unsigned
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._dcp import CHAIN, FILE
from tensorizer_ops._dcp.steps import NAME as NAME
from tensorizer_ops._front.inspection import File

# Give it texts: an error in a record keeps files open.
logger = logging.getLogger("tensorizer_ops.checkpoint")

KEY = "tensorizer_ops.chain"
FILES = (CHAIN, "chain-copy.tensors")
LOCK = ".chain.lock"
_VERSION = 1
_MOST = 100_000  # steps in a list
_MOST_TEXT = 192 * _MOST  # a step takes 160 characters at most
MOST_BYTES = 8 * _MOST_TEXT  # of a file that is no step
_END = 1 << 63  # of numbers
# What a damaged file raises, or one that is not there.
DAMAGE = (
    errors.HashMismatch,
    errors.InvalidFormat,
    errors.Crypto,
    errors.NotFound,
    errors.IsADirectory,
)
# Errors for a file of the wrong kind, or for one that somebody exchanges meanwhile: EINVAL is for
# what was a link. All others may come from a step that is whole: missing rights, too little memory,
# a broken disk, too many open files, a server that does not answer.
_OTHER_KINDS = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.ENXIO,
    errno.ENODEV,
)


@dataclass(frozen=True)
class Entry:
    """A step in the list."""

    step: int
    name: str  # of its folder, or of its file without the ending
    ranks: int  # that have saved it; 0 if one process has written one file
    since: float  # when it was listed as what it is, in seconds of time.time()
    is_verified: bool = False

    @property
    def file(self) -> str:
        """The file that makes it a checkpoint."""
        return f"{self.name}/{FILE}" if self.ranks else f"{self.name}.tensors"

    @property
    def place(self) -> str:
        return self.name if self.ranks else self.file

    @property
    def file_id(self) -> str:
        """What the names of the files of its ranks end in."""
        return self.name[-16:]

    @property
    def lease(self) -> str:
        """The file that says until when it is read."""
        return f"{self.name}-read.tensors"

    def files(self) -> Iterator[str]:
        """Yield the names of all files that it can have, first that which makes it a checkpoint."""
        ranks = (f"{self.name}/rank-{rank}-{self.file_id}.tensors" for rank in range(self.ranks))
        for name in chain((self.file,), ranks):
            yield name
            yield name + SIGNATURE
        yield self.lease


@dataclass
class Listing:
    """The steps of a chain."""

    writes: int = 0  # of the list so far
    saved: list[Entry] = field(default_factory=list)  # in the order of the saves
    unfinished: list[Entry] = field(default_factory=list)  # whose save has begun
    removed: list[Entry] = field(default_factory=list)  # whose files may still be there

    def text(self) -> str:
        return json.dumps({"version": _VERSION, **asdict(self)})


def understood(text: str, file: str) -> Listing:
    """Return the list in a text; raise ``errors.InvalidFormat`` for a damaged one."""
    try:
        if len(text) > _MOST_TEXT:
            raise ValueError(f"it has more than {_MOST_TEXT} characters")
        found = json.loads(text)
        version = found.pop("version")
        if version != _VERSION:
            raise ValueError(
                f"it has version {quoted(version, 20)}, and this release reads {_VERSION}"
            )
        lists = {
            each.name: [_entry(one) for one in found[each.name]] for each in fields(Listing)[1:]
        }
        writes = found["writes"]
        if type(writes) is not int or not 0 <= writes < _END:
            raise ValueError("it has numbers that none has")
        if sum(map(len, lists.values())) > _MOST:
            raise ValueError(f"it has more than {_MOST} steps")
        return Listing(writes, **lists)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise errors.InvalidFormat(f"{file}: the list of steps is damaged: {error}") from error


def _entry(found: Any) -> Entry:
    try:
        entry = Entry(**found)
    except TypeError:  # which says what others are called
        raise TypeError("an entry has other fields than those of this release") from None
    kinds = (int, str, int, float, bool)
    for each, kind in zip(fields(entry), kinds, strict=True):
        value = getattr(entry, each.name)
        if type(value) is not kind:
            raise TypeError(f"{each.name} is {quoted(value)}")
        if isinstance(value, (int, float)) and not 0 <= value < _END:
            raise ValueError(f"{each.name} is {quoted(value)}")
    # The name is signed, and the number not.
    is_named = NAME.fullmatch(entry.name) and entry.name.startswith(f"step-{entry.step}-")
    if not is_named or entry.ranks >= _MOST * 10:
        raise ValueError(f"a step is called {quoted(entry.name)}, of {entry.ranks} ranks")
    return entry


def is_damage(error: BaseException, options: Mapping[str, str]) -> bool:
    """Return whether an error of a step says that it is damaged, and not that it cannot be read.

    A key has authenticated the list, so it is not wrong. Without one, Crypto says that one is
    needed, or with ``trust`` that a step is not signed.
    """
    is_known = "key" in options or "trust" in options
    is_of_kind = isinstance(error, OSError) and error.errno in _OTHER_KINDS
    is_of_file = isinstance(error, DAMAGE) and (is_known or not isinstance(error, errors.Crypto))
    return is_of_kind or is_of_file


def opened(folder: Folder, name: str, options: dict[str, str], most: float = float("inf")) -> File:
    """Open a file of a chain. What is no file, such as a FIFO, or has more bytes, is damaged."""
    if folder.path is not None and os.path.lexists(path := os.path.join(folder.path, name)):
        found = _status(path)
        if found is None or not stat.S_ISREG(found.st_mode):
            raise errors.InvalidFormat(f"{name!r} in {folder.label} is no file")
        if found.st_size > most:
            raise errors.InvalidFormat(f"{name!r} in {folder.label} has more than {most} bytes")
    return File(folder.below(name), options)


def _status(path: str) -> os.stat_result | None:
    """Return what a path leads to; ``None`` for a link to nothing, and if it is gone by now."""
    try:
        return os.stat(path)
    except OSError:
        return None


def read_one(folder: Folder, name: str, options: dict[str, str]) -> Listing:
    """Return the list in one of the two files."""
    label = f"{name!r} in {folder.label}"
    file = opened(folder, name, unsigned(options), MOST_BYTES)
    if file.format().authenticated and "key" not in options:
        raise errors.Crypto(
            f"the checkpoints in {folder.label} are encrypted: name their key with the option 'key'"
        )
    texts = file.metadata()
    if KEY not in texts:
        raise errors.InvalidFormat(f"{label} has no list of steps")
    return understood(texts[KEY], label)


def read_each(folder: Folder, options: dict[str, str]) -> dict[str, Listing | errors.Error]:
    """Read each of the two files once; return its list, or the damage that it has."""
    found: dict[str, Listing | errors.Error] = {}
    for name in FILES:
        try:
            found[name] = read_one(folder, name, options)
        except DAMAGE as error:
            found[name] = error
    return found


def newest(lists: Iterable[Listing | errors.Error]) -> Listing | None:
    """Return the newest of the lists that are whole."""
    whole = (each for each in lists if isinstance(each, Listing))
    return max(whole, key=lambda listing: listing.writes, default=None)


def read(folder: Folder, options: dict[str, str]) -> Listing | None:
    """Return the newer of the two lists that is whole; ``None`` if there is none.

    If none is whole, raises the error of one.
    """
    lists = read_each(folder, options).values()
    found = newest(lists)
    problems = [each for each in lists if not isinstance(each, (Listing, errors.NotFound))]
    if problems and found is None:
        raise problems[0]
    for problem in problems:
        logger.warning("%s: the other copy of the list is used", str(problem))
    return found
