"""Versions on a node: one of its processes follows them into a file, which all of them read."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from tensorizer_ops import _core, errors
from tensorizer_ops._base.options import Options, as_text, kept
from tensorizer_ops._base.private import PrivateFolder
from tensorizer_ops._base.targets import Target, local_path, to_uri
from tensorizer_ops._versions.elements import NotInPlace, write_changes
from tensorizer_ops._versions.follower import Follower
from tensorizer_ops._versions.listing import Listing, Place, Version, logger

_NEWEST = "newest.tensors"
_VERSION = re.compile(r"version-([0-9]+)-(v2:[0-9a-f]{64})\.tensors")
# For the list of versions that is read in a pause.
_AT_ONCE = {"retries": "0", "timeout": "2"}
# Options that say how files are fetched, and not which ones are accepted.
_OF_TRANSFERS = (
    *("connect_timeout", "stall_timeout", "timeout", "retries", "http2", "connections"),
    *("chunk_size", "max_bandwidth", "node_folder", "memory_ceiling", "staging", "io"),
    "hash_first",
)
# So many rounds that passwords, in a place or an option, are not guessed by the name of the folder.
_ROUNDS = 300_000
# How many versions stay: one that the processes read, and one that has come meanwhile.
_KEPT = 2


class Node:
    """The versions that a node has.

    Processes of one user with the same place, folder and options share the files, except options
    of transfers. Keys and trusted signers are compared by what they are, not by their names; if
    they are replaced, following ends. The process that follows has a lock, so if it ends, another
    goes on. Each version is a hard link to the file as it was then: the next version is another
    file.

    Args:
        uri: the place of the versions.
        folder: a folder of this machine with room for four models; in ``/dev/shm`` they are in
            memory.
        options: as for :func:`follow`.
        interval: as for :func:`follow`.

    Raises:
        ValueError: the place or an option is wrong.
        PermissionError: the server refuses access.
    """

    def __init__(self, uri: Target, folder: str, options: Options, interval: float = 1.0) -> None:
        place = _absolute(to_uri(uri))
        self._uri, self._options, self._interval = place, kept(options), interval
        self._place = Place(place, {**as_text(options), **_AT_ONCE})
        self._label = repr(_core.without_secrets(to_uri(uri)))
        with contextlib.suppress(errors.Unavailable, errors.TimedOut):
            self._place.read()  # what is wrong with the place raises at once
        self._accepted = self._what_is_accepted()
        name = hashlib.pbkdf2_hmac("sha256", self._accepted, b"tensorizer_ops", _ROUNDS).hex()[:16]
        own = Path(folder, f"tensorizer_ops-{name}")
        self._own, self._users = _joined(own, is_signed="trust" in self._place.loads)
        self._folder = self._own.path
        self._error = ""
        self._last: Version | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tensorizer_ops node", daemon=True)
        self._thread.start()

    def file(self, version: int, patience: float) -> Path:
        """Return the file of a version. Blocks until it is there, or ``patience`` seconds.

        Files of versions that the place had before it was emptied are not taken for new ones.
        """
        self._check_unchanged()
        deadline = time.monotonic() + patience
        while (path := self._found(version)) is None:
            newest = max((number for number, _ in self._there()), default=0)
            if newest > version and not self._is_expected(version):
                raise errors.NotFound(
                    f"version {version} of {self._label} was not kept: version {newest} is the "
                    "newest one here"
                )
            if time.monotonic() > deadline:
                raise errors.TimedOut(
                    f"version {version} of {self._label} has not come within {patience:g} seconds"
                    f"{f': {self._error}' if self._error else ''}"
                )
            time.sleep(min(self._interval, 0.05))
        self._own.check()
        return path

    def changes(self, older: Path, newer: Path) -> Path:
        """Return the file of what differs between versions, which need not exist."""
        self._own.check()
        return self._folder / f"changes-{older.stem}-{newer.stem}.tensors"

    def check(self) -> None:
        """Raise if somebody else has replaced the files of the node."""
        self._own.check()

    def close(self) -> None:
        """End following. The last process of the node that does so removes the files."""
        self._stop.set()
        self._thread.join()
        with self._users, contextlib.suppress(BlockingIOError):
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _what_is_accepted(self) -> bytes:
        """Return a digest of all that decides which files are loaded."""
        accepted = {n: v for n, v in self._place.loads.items() if n not in _OF_TRANSFERS}
        for name, meaning in _MEANINGS.items():
            if name in accepted:
                accepted[name] = meaning(accepted[name])
        return hashlib.sha256(json.dumps([self._uri, sorted(accepted.items())]).encode()).digest()

    def _check_unchanged(self) -> None:
        if self._what_is_accepted() != self._accepted:
            raise errors.InvalidArgument(
                f"the trusted signers or the key for {self._label} were replaced since this "
                "process follows it: begin anew"
            )

    def _found(self, version: int) -> Path | None:
        digest = dict(self._there()).get(version)
        if digest is None:
            return None
        listing = self._listing()
        if listing is not None:
            listed = {entry.number: entry.digest for entry in listing.versions}
            if version >= listing.next_number or listed.get(version, digest) != digest:
                return None
        return self._path(version, digest)

    def _is_expected(self, version: int) -> bool:
        listing = self._listing()
        return listing is not None and version >= listing.next_number - 1

    def _listing(self) -> Listing | None:
        """Return the list of versions; ``None`` if it cannot be read."""
        try:
            content = self._place.read()
            return None if content is None else self._place.understood(content)
        except errors.Error:
            return None

    def _path(self, version: int, digest: str) -> Path:
        return self._folder / f"version-{version}-{digest}.tensors"

    def _there(self) -> list[tuple[int, str]]:
        """Return the numbers and digests of the versions that are here."""
        self._own.check()
        found = map(_VERSION.fullmatch, os.listdir(self._folder))
        return sorted((int(match[1]), match[2]) for match in found if match)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._own.check()
                with open(self._folder / "lock", "wb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._follow()
            except BlockingIOError:
                pass  # another process follows
            except Exception as error:  # nobody would start the thread again
                text = str(error) or repr(error)
                if text != self._error:
                    logger.warning("%s: trying again", text)
                self._error = text
            self._stop.wait(self._interval)

    def _follow(self) -> None:
        newest = self._folder / _NEWEST
        # After an error, too, an older list is none that follows.
        follower = Follower(self._uri, newest, 0, self._options, None, self._last)
        for version in follower.run(self._interval, None, self._stop):
            self._check_unchanged()
            self._own.check()
            self._error = ""
            link = self._folder / "link"
            link.unlink(missing_ok=True)
            os.link(newest, link)
            there = self._there()
            made = self._path(version.number, version.digest)
            if there and version.number > there[-1][0]:
                self._write_changes(self._path(*there[-1]), made, link)
            os.replace(link, made)
            for other in self._there():
                if other[0] >= version.number and self._path(*other) != made:
                    self._path(*other).unlink()  # of a run that the place had before
            for old in self._there()[:-_KEPT]:
                self._path(*old).unlink()
            self._last = version

    def _write_changes(self, older: Path, newer: Path, file: Path) -> None:
        for last in self._folder.glob("changes-*"):
            last.unlink()
        try:
            write_changes(older, file, self.changes(older, newer))
        except (NotInPlace, errors.Error) as error:  # such as no space for it
            logger.info("%s will be loaded as a whole: %s", newer.stem, str(error))


def _joined(folder: Path, *, is_signed: bool) -> tuple[PrivateFolder, BinaryIO]:
    """Return the folder of the node, and a file in it that keeps others from removing it."""
    while True:
        # The last process of the node may remove the folder meanwhile.
        with contextlib.suppress(FileNotFoundError), ExitStack() as stack:
            own = PrivateFolder(folder, is_signed=is_signed)
            path = own.path / "users"
            file = stack.enter_context(open(path, "wb"))
            fcntl.flock(file, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(file.fileno()), os.lstat(path)):
                stack.pop_all()
                return own, file


def _absolute(uri: str) -> str:
    path = local_path(uri)
    return to_uri(Path(path).absolute()) if path else uri


# What options mean whose texts may mean something else in another process, or later.
_MEANINGS: dict[str, Callable[[str], str]] = {
    "trust": _core.policy_digest,
    "key": _core.key_digest,
    "signature": _absolute,
    "signed_folder": _absolute,
}
