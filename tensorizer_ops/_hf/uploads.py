"""Copies of folders to servers."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from tensorizer_ops import errors
from tensorizer_ops._base.folder import BUNDLE, LIST, Folder, raise_own, refuse_signed
from tensorizer_ops._base.options import Options
from tensorizer_ops._base.progress import reported
from tensorizer_ops._base.signing import listed_by
from tensorizer_ops._base.targets import Target, is_uri
from tensorizer_ops._hf.hashing import Copied, Show, has_right_hashes, hash_of
from tensorizer_ops._hf.replacing import PART
from tensorizer_ops._hf.sums import Sums, why_refused


def upload(source: Target, uri: Target, options: Options | None, show: Show) -> Iterator[Copied]:
    """Copy the files of a folder on this machine, and yield each that is complete."""
    paths = _files_in(source)
    here = Folder(source)
    refuse_signed(options)  # the files here are not compared
    folder = Folder(uri, options)
    _refuse_forgotten_scheme(uri)
    there = Sums.of(folder) or Sums({})
    # Files that this folder does not have leave the list, so that a download is this folder.
    sums = {name: there.sums[name] for name in paths if name in there.sums}
    listed = Sums(sums, [name for name in paths if name not in sums])
    if listed.text() != there.text():
        listed.write(folder)
    for name, path in paths.items():
        begin = time.monotonic()
        size = os.path.getsize(path)
        is_listed = name in listed.sums
        is_there = is_listed and folder.size(name) == size
        if is_there and hash_of(here, name, "SHA-256", show) == listed.sums[name]:
            yield Copied(name, size, None, "SHA-256")  # own hashes were compared when it was sent
            continue
        checked = "SHA-256" + ", own hashes" * has_right_hashes(name, Path(path), show)
        if is_listed:
            listed.take_out(name)
            listed.write(folder)
        job = folder.upload(name, path)
        with reported(job, show(f"sending {name}")):
            digest = job.start().hex()
        listed.add(name, digest)
        listed.write(folder)
        yield Copied(name, size, time.monotonic() - begin, checked)


def _refuse_forgotten_scheme(uri: Target) -> None:
    """Refuse to make a folder on this machine for what may be meant as one of a store."""
    if not isinstance(uri, str) or is_uri(uri) or uri.startswith(("/", ".", "~")):
        return
    if not os.path.exists(uri.partition("/")[0]):
        raise errors.InvalidArgument(
            f"there is no folder {uri!r} here: write s3://{uri} for one on S3, or ./{uri} to make "
            "it on this machine"
        )


def _files_in(source: Target) -> dict[str, str]:
    """Return the paths of the files in a folder, by the names that they have on a server."""
    root = Folder(source)
    if root.path is None or not os.path.isdir(root.path):
        raise errors.InvalidArgument(
            f"{root.label} is no folder on this machine: copy takes a file"
        )
    found: dict[str, str] = {}
    for base, folders, names in os.walk(root.path, onerror=raise_own):
        # Such as .git, and .cache of huggingface_hub.
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        for name in [*folders, *names]:
            path = os.path.join(base, name)
            if os.path.islink(path) and not _is_inside(path, root.path):
                raise errors.InvalidArgument(
                    f"{path!r} is a symbolic link to a folder or out of {root.label}: copy what it "
                    "leads to"
                )
        for name in names:
            path = os.path.join(base, name)
            short = os.path.relpath(path, root.path)
            if short == LIST or PART.fullmatch(name):
                continue
            if why := why_refused(short) or ("which is no file" * (not os.path.isfile(path))):
                raise errors.InvalidArgument(f"{root.label} has the name {short!r}, {why}")
            found[short] = path
    if not found:
        raise errors.NotFound(f"{root.label} has no files")
    for short in found:
        if os.path.basename(short) == BUNDLE:
            _refuse_to_part(root.path, short, found)
    return dict(sorted(found.items()))


def _refuse_to_part(folder: str, bundle: str, copied: Collection[str]) -> None:
    """Raise if a bundle lists a file that is here and is not copied with it."""
    for listed in listed_by(os.path.join(folder, bundle)):
        name = os.path.join(os.path.dirname(bundle), listed)
        if name not in copied and os.path.lexists(os.path.join(folder, name)):
            raise errors.InvalidArgument(
                f"{bundle!r} in {folder!r} lists {listed!r}, which an upload leaves out, so that "
                "the copy would be refused: sign again without it (ignore=), or move it away and "
                "sign again"
            )


def _is_inside(link: str, root: str) -> bool:
    """Return whether a link leads to a file in a folder, or in the cache of the Hub of that."""
    real, inside = os.path.realpath(link), os.path.realpath(root)
    snapshots = os.path.dirname(inside)
    blobs = os.path.join(os.path.dirname(snapshots), "blobs")
    is_blob = os.path.basename(snapshots) == "snapshots" and os.path.dirname(real) == blobs
    return not os.path.isdir(real) and (is_blob or os.path.commonpath([inside, real]) == inside)
