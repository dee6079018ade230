"""The list of the versions in a place: one small file, which is replaced with each version."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from tensorizer_ops import _core, errors
from tensorizer_ops._base.folder import Folder, unsigned
from tensorizer_ops._base.internals import reader_of
from tensorizer_ops._base.option_uses import for_loads, for_saves
from tensorizer_ops._base.options import Options, SecretOptions, as_pairs
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._base.targets import Target
from tensorizer_ops._front.inspection import File
from tensorizer_ops._front.load_save import save

# Give it texts: an error in a record keeps files open.
logger = logging.getLogger("tensorizer_ops.versions")

FILE = "versions.tensors"
_FENCE = "fence"
_KEY = "tensorizer_ops.versions"
_FORMAT = 1
_MOST = 10_000  # versions in a list
_MOST_TEXT = 512 * _MOST  # a version takes 340 characters at most, an unlisted file 100
_MOST_REMOVED = 100  # files at once
_TIMEOUT = "60"  # seconds for a list, or a part of a long one, which a server could send for hours
_END = 1 << 63  # of numbers
_PUBLISHER = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(r"[0-9]{8,19}-[0-9a-f]{16}(\.delta)?\.tensors")
_DELTA = ".delta.tensors"
_DIGEST = re.compile(r"v2:[0-9a-f]{64}")


class Version(NamedTuple):
    """A version of a model that was published."""

    number: int  # 1 is the first
    step: int  # of the training
    digest: str  # of the model, as digest(..., version=2) returns it


@dataclass(frozen=True)
class Entry:
    """A version in the list, and the files that lead to it."""

    number: int
    step: int
    digest: str
    delta: str | None  # the file that makes it of the version before
    delta_size: int
    whole: str | None  # the file that has all of it
    whole_size: int

    @property
    def version(self) -> Version:
        return Version(self.number, self.step, self.digest)

    def files(self) -> list[str]:
        return [name for name in (self.delta, self.whole) if name is not None]


@dataclass(frozen=True)
class Unlisted:
    """A file that nobody begins to read any more."""

    name: str
    since: float  # in seconds of time.time()


@dataclass
class Listing:
    """The versions in a place, of which the last is the newest."""

    publisher: str  # the id of the one that may add a version
    versions: list[Entry] = field(default_factory=list)
    unlisted: list[Unlisted] = field(default_factory=list)

    @property
    def next_number(self) -> int:
        return self.versions[-1].number + 1 if self.versions else 1

    def text(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self)})


def file_name(number: int, publisher: str, kind: str = "") -> str:
    """Return the name of a file of a version: all of it, or with ``".delta"`` the delta."""
    return f"{number:08d}-{publisher}{kind}.tensors"


def digest_of(file: File, threads: int, *, believed: bool = True) -> str:
    """Return the digest of the model in a file; as it lists it, if that is ``believed``."""
    return file.digest(threads, 2, listed=believed and file.format().keeps_digests)


class Place:
    """A folder with versions, on this machine or on a server."""

    def __init__(self, uri: Target, options: Options | None) -> None:
        # The list is not signed: it only says where the files are, which are.
        # Others may put links under its names.
        own = {"replace_links": "true", **unsigned(options)}
        self.folder = Folder(uri, {"timeout": _TIMEOUT, **own})
        self.loads = for_loads(options)
        self.saves = for_saves(own)
        if "key" in self.loads:  # what a publisher has encrypted is always authenticated
            self.loads.setdefault("require_authenticated", "true")
        if self.folder.path is not None:
            self.saves.setdefault("fsync", "true")
        self.label = self.folder.label

    def encryption(self) -> SecretOptions:
        """Return the options that encrypt, for files of this machine."""
        return SecretOptions({k: v for k, v in self.saves.items() if k in ("key", "kdf")})

    def decryption(self) -> SecretOptions:
        """Return the options that decrypt these files."""
        return SecretOptions({k: v for k, v in self.saves.items() if k == "key"})

    def read(self) -> bytes | None:
        """Return the list as it is stored; ``None`` if there is none."""
        if self.folder.path is not None:
            path = os.path.join(self.folder.path, FILE)
            if os.path.exists(path) and not os.path.isfile(path):  # a FIFO would never end
                raise errors.InvalidFormat(f"{FILE!r} in {self.label} is no file")
        return self.folder.if_there(FILE, lambda: self.folder.read(FILE, 2 * _MOST_TEXT))

    def understood(self, content: bytes) -> Listing:
        """Return the list in the content of its file."""
        names = ("key", "kdf_limit", "require_authenticated")
        options = SecretOptions({k: v for k, v in self.loads.items() if k in names})
        label = f"{FILE!r} in {self.label}"
        try:
            texts = reader_of(_core.buffer_source(content, 0), options).metadata()
        except errors.InvalidFormat as error:
            raise errors.InvalidFormat(f"{label} is damaged: {_of_bytes(error)}") from error
        except errors.Crypto as error:
            raise errors.Crypto(f"{label}: {_of_bytes(error)}") from error
        if _KEY not in texts:
            raise errors.InvalidFormat(f"{label} is no list of versions")
        return _parsed(texts[_KEY], label)

    def needs_key(self) -> bool:
        """Return whether the list, which is there, was written with a key, and none was given."""
        if "key" in self.loads:
            return False
        return File(self.folder.uri(FILE), unsigned(self.loads)).format().encrypted

    def write(self, known: bytes | None, listing: Listing, fenced: bool) -> bool:
        """Replace the list, if it is still the known one. Returns whether it was replaced.

        Raises if nobody could read it, as after the last number.
        """
        text = listing.text()
        _parsed(text, f"{FILE!r} for {self.label}")
        buffer = io.BytesIO()
        save(buffer, {}, options=self.encryption(), metadata={_KEY: text})
        if fenced:
            return self._swap(FILE, known, buffer.getvalue())
        if self.read() != known:
            return False
        with tempfile.NamedTemporaryFile() as file:
            file.write(buffer.getvalue())
            file.flush()
            self.folder.write(FILE, file.name)
        return True

    def has_fences(self) -> bool:
        """Return whether the server replaces a file only on the condition that it was given."""
        tries = [secrets.token_bytes(16) for _ in range(2)]
        return not all(self._swap(_FENCE, None, each) for each in tries)

    def _swap(self, name: str, known: bytes | None, content: bytes) -> bool:
        return _core.swap(self.folder.uri(name), known, content, as_pairs(self.saves))

    def remove(self, unlisted: list[Unlisted], before: float) -> list[Unlisted]:
        """Remove files that are unlisted since before a time, and return those that stay.

        Many are removed by several calls, those that cannot be removed last.
        """
        due: list[Unlisted] = []
        staying: list[Unlisted] = []
        for file in unlisted:
            is_due = file.since < before and len(due) < _MOST_REMOVED
            (due if is_due else staying).append(file)
        for file in due:
            try:
                self.folder.remove_signed(file.name)
            except errors.Error as error:
                logger.warning("%r in %s stays for now: %s", file.name, self.label, str(error))
                staying.append(file)
        return staying


def _of_bytes(error: errors.Error) -> str:
    return str(error).removeprefix("a buffer in memory: ")


def _parsed(text: str, label: str) -> Listing:
    try:
        if len(text) > _MOST_TEXT:
            raise ValueError(f"it has more than {_MOST_TEXT} characters")
        found = json.loads(text)
        if found.pop("format") != _FORMAT:
            raise ValueError(f"this release reads lists of format {_FORMAT}")
        listing = Listing(
            found["publisher"],
            [_checked(Entry, each) for each in found["versions"]],
            [_checked(Unlisted, each) for each in found["unlisted"]],
        )
        numbers = [entry.number for entry in listing.versions]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers)) if numbers else []):
            raise ValueError("its versions are not in order")
        if not _PUBLISHER.fullmatch(listing.publisher) or len(listing.versions) > _MOST:
            raise ValueError("it has no publisher, or too many versions")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise errors.InvalidFormat(f"{label}: the list of versions is damaged: {error}") from error
    return listing


_KINDS: dict[str, Any] = {
    "int": int,
    "str": str,
    "float": (int, float),
    "str | None": (str, type(None)),
}


def _checked(kind: Any, found: Mapping[str, Any]) -> Any:
    try:
        made = kind(**found)
    except TypeError:  # which says what others are called
        raise TypeError("an entry has other fields than those of this release") from None
    for name, wanted in kind.__annotations__.items():
        value = getattr(made, name)
        if isinstance(value, bool) or not isinstance(value, _KINDS[wanted]):
            raise TypeError(f"{name} is {quoted(value)}")
        if isinstance(value, (int, float)) and not 0 <= value < _END:
            raise ValueError(f"{name} is {quoted(value)}")
    for name in made.files() if isinstance(made, Entry) else [made.name]:
        if not _NAME.fullmatch(name):
            raise ValueError(f"a file is called {quoted(name)}")
    if isinstance(made, Entry) and not (
        # A name is signed with its file, so no file is taken for that of a later version.
        made.files()
        and all(name.startswith(f"{made.number:08d}-") for name in made.files())
        and (made.delta is None or made.delta.endswith(_DELTA))
        and not (made.whole or "").endswith(_DELTA)
        and _DIGEST.fullmatch(made.digest)
    ):
        raise ValueError(f"version {made.number} is not described")
    return made
