"""Copies of folders from servers."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from tensorizer_ops import errors
from tensorizer_ops._base.folder import LIST, Folder, inside, refuse_path
from tensorizer_ops._base.options import Options
from tensorizer_ops._base.progress import reported
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._base.signed_folder import OF_TOOLS, others_in, refuse_links
from tensorizer_ops._base.targets import Target
from tensorizer_ops._hf.files import (
    SMALL_FILES,
    TOKENIZER_CONFIG,
    found_weights,
    read_object,
    vocabulary_files,
)
from tensorizer_ops._hf.hashing import Copied, Hashing, Show, has_right_hashes, hash_of
from tensorizer_ops._hf.replacing import PART, opened, replacing
from tensorizer_ops._hf.sums import Sums

_REQUESTS = 8  # for small files
_MOST_NAMES = 5


def download(
    uri: Target, target: Target, options: Options | None, show: Show, overwrite: bool = False
) -> Iterator[Copied]:
    """Copy the files of a folder to this machine, and yield each that is complete."""
    folder = Folder(uri, options)
    here = Folder(target)
    if here.path is None:
        raise errors.InvalidArgument("the target of a download is a folder on this machine")
    listed = None if folder.policy else Sums.of(folder)
    if listed is not None and listed.missing:
        names = [quoted(name, 200) for name in listed.missing]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        raise errors.InvalidFormat(
            f"{folder.label} is not complete, because an upload to it has not ended: it lacks "
            f"{', '.join(names[:_MOST_NAMES])}{more}; run the upload again, which goes on"
        )
    wanted: dict[str, str | None] = {}
    if folder.policy:
        wanted.update(dict.fromkeys(folder.signed_files()))
        refuse_others(folder, here.path, wanted)
    else:
        wanted.update(listed.sums if listed else dict.fromkeys(_model_files(folder)))
    job = _Download(folder, here, show, overwrite)
    right = job.right_files(wanted)
    with opened(here.path) as place:
        for name, digest in wanted.items():
            if name in right:
                size = os.path.getsize(os.path.join(here.path, name))
                yield Copied(name, size, None, right[name])
                continue
            begin = time.monotonic()
            size, checked = job.receive(name, digest, place)
            yield Copied(name, size, time.monotonic() - begin, checked)
        if folder.policy:  # another download may have written to the folder meanwhile
            refuse_others(folder, here.path, wanted)
        if listed:
            with replacing(place, here.path, LIST) as file:
                file.write(listed.text().encode())


def refuse_others(folder: Folder, target: str, names: Collection[str]) -> None:
    """Raise if there would be unsigned files beside signed ones that are copied to a target.

    Libraries find files in a folder by themselves, also hidden ones.
    """
    if not os.path.isdir(target):
        return
    folders = {"", *map(os.path.dirname, names)}
    # A link in the place of a file is replaced.
    refuse_links(target, folders - {""})
    left_out = [*OF_TOOLS, *inside(target, folder.loads["signature"])]
    for name in others_in(target, names, left_out):
        place, last = os.path.split(name)
        path = os.path.join(target, name)
        # In another folder, it would hide that this one is there.
        is_file = os.path.isfile(path) and not os.path.islink(path)
        if not (is_file and place in folders and PART.fullmatch(last)):
            raise errors.InvalidArgument(
                f"{path!r} is none of the signed files that are copied from "
                f"{folder.label}, and may be used with them: move it away, or give another folder"
            )


class _Download:
    """A copy of a folder to one on this machine."""

    def __init__(self, folder: Folder, here: Folder, show: Show, overwrite: bool) -> None:
        assert here.path is not None
        self._folder = folder
        self._here = here
        self._target = here.path
        self._show = show
        self._overwrite = overwrite

    def right_files(self, wanted: Mapping[str, str | None]) -> dict[str, str]:
        """Return the files that need not be fetched, and what was compared.

        Raises for a file that is neither one of the folder nor one that an earlier download has
        written, unless it may be replaced.
        """
        if self._folder.policy:  # what a server says of its files, nobody has signed
            return {}
        earlier = None if self._overwrite else Sums.of(self._here)
        right: dict[str, str] = {}
        for name, digest in wanted.items():
            if not os.path.isfile(os.path.join(self._target, name)):
                continue
            kept = ("SHA-256", digest) if digest else self._folder.open(name, 1, 1).digest()
            if kept is None:
                continue
            kind, expected = kept
            found = hash_of(self._here, name, kind, self._show)
            if found == expected:
                right[name] = kind if digest else f"the server's {kind}"
            elif not self._overwrite and not (earlier and earlier.sums.get(name) == found):
                raise self._would_be_lost(name)
        return right

    def receive(self, name: str, digest: str | None, place: int) -> tuple[int, str]:
        """Fetch a file, check it and put it into its place; return its size and what was compared.

        ``place`` is the folder on this machine, which is open.
        """
        folder, show = self._folder, self._show
        job = Hashing(folder, name, ("SHA-256", digest) if digest else None)
        with replacing(place, self._target, name) as part:
            with reported(job, show(f"fetching {name}")):
                found = job.run(part)
            if job.expected is not None and found != job.expected:
                raise errors.HashMismatch(
                    f"{name!r} in {folder.label} has another {job.kind} than "
                    f"{f'{LIST!r} there' if digest else 'its server'} says: it is damaged, or was "
                    "replaced meanwhile; try again, or upload it again"
                )
            if digest:
                return job.done, job.kind
            if folder.policy and name == folder.bundle:
                folder.check_bundle(_read_again(part))
            try:
                own = ["own hashes"] * has_right_hashes(name, _read_again(part), show)
            except (errors.HashMismatch, errors.InvalidFormat) as error:
                raise type(error)(f"{name!r} in {folder.label}: {error}") from error
            # Without a hash that was compared before, only the bytes show whether they are others.
            if not self._overwrite and (job.expected is None or folder.policy):
                self._refuse_to_lose(name, job, found)
            kept = [f"the server's {job.kind}"] * (job.expected is not None)
            kept += ["signature"] * (folder.policy is not None)
            return job.done, ", ".join(kept + own) or "no hash"

    def _refuse_to_lose(self, name: str, job: Hashing, found: str) -> None:
        path = os.path.join(self._target, name)
        if not os.path.isfile(path):
            return
        # Of another size, it may be a planted one of terabytes.
        is_size = os.path.getsize(path) == job.done
        if not is_size or hash_of(self._here, name, job.kind, self._show) != found:
            raise self._would_be_lost(name)

    def _would_be_lost(self, name: str) -> errors.InvalidArgument:
        return errors.InvalidArgument(
            f"{os.path.join(self._target, name)!r} exists with other content than in "
            f"{self._folder.label}, and would be lost: move it away, or replace it with "
            "overwrite=True"
        )


def _read_again(file: BinaryIO) -> str:
    """Return the URI of an open file that was written."""
    file.seek(0)
    return f"fd:{file.fileno()}"


def _model_files(folder: Folder) -> list[str]:
    """Return the names of the files of a model in a folder without a list."""
    try:
        weights = found_weights(folder)
    except errors.NotFound:
        # The error of a wrong key or bucket was taken for that of a file that is not there.
        try:
            folder.open(LIST, 1, 1)
            why = ""
        except FileNotFoundError as error:
            why = f": {error}"
        raise errors.NotFound(
            f"{folder.label} has neither the list {LIST!r}, which upload writes, nor weights of a "
            f"model under a usual name{why}; copy takes a single file"
        ) from None
    shards: set[str] = set()
    if weights.endswith(".json"):
        index = read_object(folder, weights).get("weight_map")
        shards = set(index.values()) if isinstance(index, dict) else set()
        for name in shards:
            refuse_path(name, folder.label)
    small = dict.fromkeys(SMALL_FILES)
    if (config := folder.read_if_there(TOKENIZER_CONFIG)) is not None:
        with contextlib.suppress(ImportError):  # without transformers, the usual names
            small |= dict.fromkeys(sorted(vocabulary_files(config)))
    with ThreadPoolExecutor(_REQUESTS) as pool:
        found = [n for n, there in zip(small, pool.map(folder.has, small), strict=True) if there]
    return [*found, weights, *sorted(shards)]
