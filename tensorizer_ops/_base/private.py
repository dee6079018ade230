"""Folders and files of this machine that nobody but this user writes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from itertools import pairwise
from pathlib import Path

from tensorizer_ops import errors

_OTHERS_WRITE = 0o022


def private_folder(folder: Path, *, is_signed: bool) -> Path:
    """Make a folder for this user, unless it is there, and return its path without links above it.

    Raises:
        PermissionError: others may write to it, or, if what is signed will lie in it, put another
            one in its place. They can know its name before it is made.
    """
    folder = folder.absolute()
    above = Path(os.path.realpath(folder.parent))
    above.mkdir(parents=True, exist_ok=True)
    folder = above / folder.name
    if is_signed:
        _check_lasting(folder, "give another folder")
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = os.lstat(folder)
        owned = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if not owned or found.st_mode & _OTHERS_WRITE:
            raise _refusal(
                folder,
                "is not a folder of this user that nobody else may write to: remove it, or give "
                "another folder",
            ) from None
    return folder


def temporary_place(*, is_signed: bool) -> str:
    """Return the folder for temporary files, without links, for ``dir`` of ``tempfile``.

    Raises:
        PermissionError: what is signed will lie in it, and others may replace that.
    """
    place = Path(os.path.realpath(tempfile.gettempdir()))
    if is_signed:
        _check_lasting(place / "tensorizer_ops-*", "set TMPDIR to another folder")
    return str(place)


def is_ours(file: Path) -> bool | None:
    """Return whether nobody else has made a file where all may create some, and may change it.

    A save replaces a file of others (``csrc/io/local/replacement.cpp``). ``None`` means that there
    is no file. Its owner is looked at once: others may remove theirs at any moment.
    """
    try:
        above, found = file.resolve().parent.stat(), file.stat()
    except (OSError, ValueError, RuntimeError):  # such as a loop of links
        return None
    is_shared = above.st_mode & stat.S_ISVTX and above.st_mode & _OTHERS_WRITE
    return not is_shared or found.st_uid in (os.geteuid(), above.st_uid)


def _check_lasting(path: Path, advice: str) -> None:
    """Raise if others may replace a path, or a folder above, of which none may be a link.

    Begins at the root, so nobody changes what is checked already.
    """
    for above, below in pairwise(reversed([path, *path.parents])):
        found = os.lstat(above)
        if not stat.S_ISDIR(found.st_mode):
            raise _refusal(above, "was replaced just now: try again")
        if found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
            raise _refusal(
                above,
                f"is a folder in which others may replace {below.name!r}: take its write "
                f"permission from them, or set its sticky bit, or {advice}",
            )
        if found.st_uid not in (os.geteuid(), 0, _root()):
            raise _refusal(
                above, f"belongs to another user, who may replace {below.name!r} in it: {advice}"
            )


def _root() -> int:
    """Return the number of root, who has another one in containers of other users."""
    with contextlib.suppress(OSError):
        return os.stat("/proc").st_uid
    return 0


def _refusal(folder: Path, why: str) -> errors.PermissionDenied:
    return errors.PermissionDenied(errno.EACCES, f"{str(folder)!r} {why}", str(folder))
