"""Versions on a node: one of its processes follows them into a file, which all of them read."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import threading
import time
from pathlib import Path

from tensorizer_ops import _core, errors
from tensorizer_ops._base.options import Options
from tensorizer_ops._base.targets import Target, to_uri
from tensorizer_ops._versions.elements import NotInPlace, write_changes
from tensorizer_ops._versions.follower import follow
from tensorizer_ops._versions.listing import logger

_NEWEST = "newest.tensors"
_VERSION = re.compile(r"version-([0-9]+)\.tensors")
# How many versions stay: one that the processes read, and one that has come meanwhile.
_KEPT = 2


class Node:
    """The versions that a node has.

    Processes with the same place and the same folder share the files. The one that follows has a
    lock, so if it ends, another goes on. Each version is a hard link to the file as it was then:
    the next version is another file.

    Args:
        uri: the place of the versions.
        folder: a folder of this machine with room for three models; in ``/dev/shm`` they are in
            memory.
        options: as for :func:`follow`.
        interval: as for :func:`follow`.
    """

    def __init__(self, uri: Target, folder: str, options: Options, interval: float = 1.0) -> None:
        place = to_uri(uri)
        self._uri, self._options, self._interval = place, options, interval
        self._label = repr(_core.without_secrets(place))
        name = hashlib.sha256(place.encode()).hexdigest()[:16]
        self._folder = Path(folder, f"tensorizer_ops-{name}")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._users = open(self._folder / "users", "wb")  # noqa: SIM115, closed by close()
        fcntl.flock(self._users, fcntl.LOCK_SH)
        self._error = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tensorizer_ops node", daemon=True)
        self._thread.start()

    def file(self, version: int, patience: float) -> Path:
        """Return the file of a version. Blocks until it is there, or ``patience`` seconds."""
        path = self._path(version)
        deadline = time.monotonic() + patience
        while not path.exists():
            if (newest := max(self._there(), default=0)) > version:
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
        return path

    def changes(self, older: int, newer: int) -> Path:
        """Return the file of what differs between versions, which need not exist."""
        return self._folder / f"changes-{older}-{newer}.tensors"

    def close(self) -> None:
        """End following. The last process of the node that does so removes the files."""
        self._stop.set()
        self._thread.join()
        with self._users, contextlib.suppress(BlockingIOError):
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, version: int) -> Path:
        return self._folder / f"version-{version}.tensors"

    def _there(self) -> list[int]:
        found = map(_VERSION.fullmatch, os.listdir(self._folder))
        return sorted(int(match[1]) for match in found if match)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with open(self._folder / "lock", "wb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._follow()
            except BlockingIOError:
                pass  # another process follows
            except (errors.Error, OSError) as error:
                if str(error) != self._error:
                    logger.warning("%s: trying again", str(error))
                self._error = str(error)
            self._stop.wait(self._interval)

    def _follow(self) -> None:
        newest = self._folder / _NEWEST
        versions = follow(
            self._uri,
            newest,
            interval=self._interval,
            stop=self._stop,
            options=self._options,
        )
        for version in versions:
            self._error = ""
            link = self._folder / "link"
            link.unlink(missing_ok=True)
            os.link(newest, link)
            there = self._there()
            if there and version.number > there[-1]:
                self._write_changes(there[-1], version.number, link)
            os.replace(link, self._path(version.number))
            for old in self._there()[:-_KEPT]:
                self._path(old).unlink()

    def _write_changes(self, older: int, newer: int, file: Path) -> None:
        for last in self._folder.glob("changes-*"):
            last.unlink()
        try:
            write_changes(self._path(older), file, self.changes(older, newer))
        except (NotInPlace, errors.Error) as error:  # such as no space for it
            logger.info("version %d will be loaded as a whole: %s", newer, str(error))
