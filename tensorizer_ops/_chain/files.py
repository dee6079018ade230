"""Verifies the files of a step, without torch, and removes them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tensorizer_ops import errors
from tensorizer_ops._base.folder import Folder
from tensorizer_ops._chain.listing import DAMAGE, FILES, Entry, Listing, read, read_one
from tensorizer_ops._dcp import DATA_FILE, FILE, KEY, NAME_KEY
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
    if not entry.ranks:
        if number == 0:
            File(folder.uri(entry.file), options).verify(verify, threads)
        return
    for file in files_of_ranks(folder, entry.name, options)[number::count]:
        verify_file_of_rank(folder, f"{entry.name}/{file}", options, verify, threads)


def files_of_ranks(folder: Folder, place: str, options: dict[str, str]) -> list[str]:
    """Return the names of the files of a checkpoint of many ranks, in a folder in the folder."""
    name = f"{place}/{FILE}" if place else FILE
    label = f"{name!r} in {folder.label}"
    texts = File(folder.below(name), options).metadata()
    try:
        files: list[str] = json.loads(texts[KEY])["files"]
        if not all(map(DATA_FILE.fullmatch, files)):
            raise ValueError("it names what is no file of a rank")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise errors.InvalidFormat(f"{label}: the list of files is damaged: {error}") from error
    return files


def verify_file_of_rank(
    folder: Folder, name: str, options: dict[str, str], verify: str, threads: int
) -> None:
    """Verify a file, and that it has the place that it was saved to."""
    file = File(folder.below(name), options)
    if file.metadata().get(NAME_KEY) != name.rpartition("/")[2]:
        raise errors.InvalidFormat(
            f"{name!r} in {folder.label} is not the file that a rank has saved under this name"
        )
    file.verify(verify, threads)


def checks_of(
    folder: Folder, options: dict[str, str], verify: str, threads: int
) -> dict[str, Callable[[], object]]:
    """Return what verifies each part of a chain, or of a checkpoint of many ranks, by its name.

    Nothing is returned if the folder is neither.
    """
    how = (options, verify, threads)
    checks: dict[str, Callable[[], object]] = {}
    if any(map(folder.has, FILES)):
        for name in FILES:
            checks[name] = partial(read_one, folder, name, options)
        with contextlib.suppress(*DAMAGE):  # which the checks of the lists will say
            for entry in (read(folder, options) or Listing()).saved:
                checks[entry.place] = partial(verify_step, folder, entry, *how)
    elif folder.has(FILE):
        checks[FILE] = partial(files_of_ranks, folder, "", options)
        with contextlib.suppress(*DAMAGE):
            for file in files_of_ranks(folder, "", options):
                checks[file] = partial(verify_file_of_rank, folder, file, *how)
    return checks


def remove_step(folder: Folder, entry: Entry) -> None:
    """Remove all files of a step. Removing it again does nothing."""
    first, *others = entry.files()
    folder.remove(first)
    with ThreadPoolExecutor(_REQUESTS) as pool:
        list(pool.map(folder.remove, others))
    if folder.path is not None and entry.ranks:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(os.path.join(folder.path, entry.name))
