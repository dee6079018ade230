"""Folders of this machine whose files nobody but this user writes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from tensorizer_ops import errors

_OTHERS_WRITE = 0o022


def private_folder(folder: Path) -> Path:
    """Make a folder for this user, unless it is there, and return its absolute path.

    Raises:
        PermissionError: others may write to it, or put another one in its place. They can know its
            name before it is made.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    above = os.stat(folder.parent)
    if above.st_mode & _OTHERS_WRITE and not above.st_mode & stat.S_ISVTX:
        raise _refusal(
            folder.parent,
            f"is a folder in which others may replace {folder.name!r}: take its write permission "
            "from them, or set its sticky bit, or give another folder",
        )
    if above.st_uid not in (os.geteuid(), 0, _root()):
        raise _refusal(
            folder.parent,
            f"belongs to another user, who may replace {folder.name!r} in it: give another folder",
        )
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


def is_of_others(file: Path) -> bool:
    """Return whether somebody else has made a file where all may create some, and may change it.

    A save replaces such a file (``csrc/io/local/replacement.cpp``).
    """
    try:
        file = file.resolve()
        found, above = file.stat(), file.parent.stat()
    except (OSError, ValueError, RuntimeError):  # such as a loop of links
        return False
    is_shared = above.st_mode & stat.S_ISVTX and above.st_mode & _OTHERS_WRITE
    return bool(is_shared) and found.st_uid not in (os.geteuid(), above.st_uid)


def _root() -> int:
    """Return the number of root, who has another one in containers of other users."""
    with contextlib.suppress(OSError):
        return os.stat("/proc").st_uid
    return 0


def _refusal(folder: Path, why: str) -> errors.PermissionDenied:
    return errors.PermissionDenied(errno.EACCES, f"{str(folder)!r} {why}", str(folder))
