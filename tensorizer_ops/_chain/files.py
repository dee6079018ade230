"""Verifies the files of a step, without torch, and removes them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

from tensorizer_ops import errors
from tensorizer_ops._base.folder import SIGNATURE, Folder, names_in, unsigned
from tensorizer_ops._base.targets import Target
from tensorizer_ops._chain.listing import (
    DAMAGE,
    FILES,
    LOCK,
    Entry,
    Listing,
    newest,
    opened,
    read_each,
)
from tensorizer_ops._dcp import DATA_FILE, FILE, KEY, NAME_KEY
from tensorizer_ops._dcp.signatures import Signatures
from tensorizer_ops._dcp.steps import NAME, STEP_KEY, check_step, step_named
from tensorizer_ops._front.inspection import File

# Files that are removed at the same time.
_REQUESTS = 8


def verify_step(
    folder: Folder,
    entry: Entry,
    options: dict[str, str],
    verify: str = "all",
    threads: int = 0,
    share: tuple[int, int] = (0, 1),
) -> None:
    """Compare the files of a step with the hashes in them; raise for one that is not whole.

    With ``share``, the number and the count of those who verify, only every so many-th file.
    """
    number, count = share
    if entry.ranks:
        # The files of the list that was checked: another one may be in its place by now.
        ranks = _Ranks(Folder(folder.uri(entry.name), options), entry.name)
        for check in list(ranks.checks(verify, threads).values())[number::count]:
            check()
        return
    file = check_name(folder, entry, options)
    if number == 0:
        file.verify(verify, threads)


def check_name(folder: Folder, entry: Entry, options: dict[str, str]) -> File:
    """Open the file that makes a step a checkpoint; raise if it is that of another step."""
    if entry.ranks:
        return _Ranks(Folder(folder.uri(entry.name), options), entry.name).list
    file = opened(folder, entry.file, options)
    if file.metadata().get(STEP_KEY) != entry.name:
        raise errors.InvalidFormat(
            f"{entry.file!r} in {folder.label} is not what was saved as step {entry.step}"
        )
    return file


class _Ranks:
    """The files of a checkpoint of many ranks, of the step of this name if it has one."""

    def __init__(self, folder: Folder, step: str | None) -> None:
        self._folder = folder
        self._signatures = Signatures(folder)
        self.list = opened(folder, FILE, self._signatures.loads(FILE))
        shown = f"{FILE!r} in {folder.label}"
        check_step(step, shown, self.list.metadata())

    def checks(self, verify: str, threads: int) -> dict[str, Callable[[], object]]:
        """Return what verifies each of the other files."""
        files, roots = _listed(self.list, f"{FILE!r} in {self._folder.label}")
        return {file: partial(self._verify, file, roots, verify, threads) for file in files}

    def _verify(self, name: str, roots: dict[str, str], verify: str, threads: int) -> None:
        """Verify a file, and that it has the place that it was saved to."""
        file = opened(self._folder, name, self._signatures.loads(name, roots))
        if file.metadata().get(NAME_KEY) != name:
            raise errors.InvalidFormat(
                f"{name!r} in {self._folder.label} is not the file that a rank has saved under "
                "this name"
            )
        file.verify(verify, threads)


def _listed(file: File, label: str) -> tuple[list[str], dict[str, str]]:
    """Return the files that a checkpoint of many ranks lists.

    Also returns the root digests of those with signatures of their own.
    """
    try:
        found = json.loads(file.metadata()[KEY])
        files: list[str] = found["files"]
        roots: dict[str, str] = dict(found.get("roots", {}).items())
        if not isinstance(files, list) or not all(map(DATA_FILE.fullmatch, files)):
            raise ValueError("it names what is no file of a rank")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise errors.InvalidFormat(f"{label}: the list of files is damaged: {error}") from error
    return files, roots


def checks_of(
    uri: Target, options: dict[str, str], verify: str, threads: int
) -> dict[str, Callable[[], object]]:
    """Return what verifies each part of a chain, or of a checkpoint of many ranks, by its name.

    Nothing is returned if the folder is neither. The files that list the parts are read here, once.
    What is wrong with one is what its check raises, even if the file is whole by then: the parts
    are not known.
    """
    folder = Folder(uri, unsigned(options))
    how = (options, verify, threads)
    checks: dict[str, Callable[[], object]] = {}
    if any(map(folder.has, FILES)):
        lists = read_each(folder, options)
        checks |= {name: partial(_raise_if_error, found) for name, found in lists.items()}
        saved = (newest(lists.values()) or Listing()).saved
        checks |= {entry.place: partial(verify_step, folder, entry, *how) for entry in saved}
        if "trust" in options and not saved:  # anybody can write such lists
            checks["steps"] = partial(_raise_no_steps, folder)
    elif folder.has(FILE) or _has_files_of_ranks(folder) or step_named(folder.place):
        try:
            files = _Ranks(Folder(uri, options), step_named(folder.place)).checks(verify, threads)
        except DAMAGE as error:
            return {FILE: partial(_raise_if_error, error)}
        checks = {FILE: partial(_raise_if_error, None), **files}
    return checks


def is_own_name(name: str) -> bool:
    """Return whether a chain or a checkpoint of many ranks may have a file of this name.

    That is also one that a save has left which did not end.
    """
    *folders, last = name.split("/")
    file = last.removesuffix(SIGNATURE)
    step, ending = file.removesuffix(".tensors").removesuffix("-read"), file.endswith(".tensors")
    is_own = (
        file in (*FILES, FILE, LOCK)
        or DATA_FILE.fullmatch(file)
        or (ending and NAME.fullmatch(step))
        or (folders and not last)
    )
    return bool(is_own) and len(folders) < 2 and all(map(NAME.fullmatch, folders))


def _raise_if_error(found: object) -> None:
    if isinstance(found, errors.Error):
        raise found


def _raise_no_steps(folder: Folder) -> None:
    raise errors.InvalidFormat(f"the chain {folder.label} has no steps, so nothing is signed")


def _has_files_of_ranks(folder: Folder) -> bool:
    return folder.path is not None and any(map(DATA_FILE.fullmatch, names_in(folder.path)))


def remove_step(folder: Folder, entry: Entry) -> None:
    """Remove all files of a step. Removing it again does nothing."""
    if folder.path is not None and entry.ranks:
        _remove_folder(os.path.join(folder.path, entry.name), entry)
        folder.remove(entry.lease)
        return
    names = entry.files()
    folder.remove(next(names))
    with ThreadPoolExecutor(_REQUESTS) as pool:
        # Not all at once: anybody can write a list with a step of a million ranks.
        while batch := list(islice(names, 8 * _REQUESTS)):
            list(pool.map(folder.remove, batch))


def _remove_folder(path: str, entry: Entry) -> None:
    """Remove the files of a step that are in its folder, and the folder if no others are in it.

    A link in the place of the folder is not followed: the files are others then.
    """
    ends = tuple(f"-{entry.file_id}.tensors{end}" for end in ("", SIGNATURE))
    try:
        place = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            there = [name for name in os.listdir(place) if name.startswith("rank-")]
            for name in (FILE, FILE + SIGNATURE, *(n for n in there if n.endswith(ends))):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=place)
        finally:
            os.close(place)
        os.rmdir(path)
    except OSError as error:
        # It is gone, or somebody has files in it.
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
            text = f"cannot remove {path!r}: {error.strerror}"
            raise errors.FileError(error.errno, text) from error
