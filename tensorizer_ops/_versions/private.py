"""Folders of this machine whose files nobody but this user writes."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from tensorizer_ops import errors

_OTHERS_WRITE = 0o022


def private_folder(folder: Path) -> Path:
    """Make a folder for this user, unless it is there, and return its absolute path.

    Raises:
        PermissionError: others may write to it. They can know its name before it is made.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
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


def _refusal(folder: Path, why: str) -> errors.PermissionDenied:
    return errors.PermissionDenied(errno.EACCES, f"{str(folder)!r} {why}", str(folder))
