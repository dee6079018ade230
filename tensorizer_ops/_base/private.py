"""Folders and files of this machine that nobody but this user writes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from tensorizer_ops import _core, errors

_OTHERS_WRITE = 0o022
_OTHERS = 0o077
# Folders of the system, which belong to its root whatever number he has in a container.
_OF_THE_SYSTEM = {
    Path(path)
    for path in ("/", "/dev", "/dev/shm", "/home", "/run", "/run/user", "/tmp", "/var", "/var/tmp")
}


class PrivateFolder:
    """A folder for this user alone.

    What cleans up temporary files may remove it, and then others can make one under its name.
    """

    def __init__(self, folder: Path, *, is_signed: bool) -> None:
        """Make a folder, unless it is there. No folder on the way to ``path`` is a link.

        Raises:
            PermissionError: others may write to it, or, if what is signed will lie in it, enter it,
                or put another one in its place. They can know its name before it is made.
        """
        folder = folder.absolute()
        above = Path(os.path.realpath(folder.parent))
        above.mkdir(parents=True, exist_ok=True)
        self.path = above / folder.name
        if is_signed:
            _check_lasting(self.path, "give another folder")
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        # While it is open, no other one gets its number.
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._open = os.open(self.path, flags)
        except NotADirectoryError:
            raise self._refusal() from None
        weakref.finalize(self, os.close, self._open)
        found = os.fstat(self._open)
        # Files in it may get more permissions from the umask, or from its list of users.
        refused = _OTHERS if is_signed else _OTHERS_WRITE
        if not _is_of(found.st_uid, os.geteuid()) or found.st_mode & refused:
            raise self._refusal()

    def check(self) -> None:
        """Raise if it is not there any more."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._open), os.lstat(self.path)):
                return
        raise _refused(
            self.path, "was removed or replaced by somebody else, while it was used: begin anew"
        )

    def _refusal(self) -> errors.PermissionDenied:
        return _refused(
            self.path,
            "is not a folder of this user that nobody else may use: remove it, take the "
            "permissions of others, or give another folder",
        )


@contextmanager
def temporary_folder(*, is_signed: bool) -> Iterator[PrivateFolder]:
    """Make a folder until the block ends.

    Raises:
        PermissionError: what is signed will lie in it, and others may replace it.
    """
    place = Path(os.path.realpath(tempfile.gettempdir()))
    if is_signed:
        _check_lasting(place / "tensorizer_ops-*", "set TMPDIR to another folder")
    with tempfile.TemporaryDirectory(
        prefix="tensorizer_ops-", dir=place, ignore_cleanup_errors=True
    ) as made:
        yield PrivateFolder(Path(made), is_signed=is_signed)


def _check_lasting(path: Path, advice: str) -> None:
    """Raise if others may replace a path, or a folder above, of which none may be a link.

    Begins at the root, so nobody changes what is checked already.
    """
    for above, below in pairwise(reversed([path, *path.parents])):
        found = os.lstat(above)
        if not stat.S_ISDIR(found.st_mode):
            raise _refused(above, "was replaced just now: try again")
        if found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
            raise _refused(
                above,
                f"is a folder in which others may replace {below.name!r}: take its write "
                f"permission from them, or set its sticky bit, or {advice}",
            )
        is_of_root = _is_of(found.st_uid, 0) or (
            above in _OF_THE_SYSTEM and _core.may_be_anybody(found.st_uid)
        )
        if not (is_of_root or _is_of(found.st_uid, os.geteuid())):
            raise _refused(
                above, f"belongs to another user, who may replace {below.name!r} in it: {advice}"
            )


def _is_of(owner: int, user: int) -> bool:
    return owner == user and not _core.may_be_anybody(owner)


def _refused(folder: Path, why: str) -> errors.PermissionDenied:
    return errors.PermissionDenied(errno.EACCES, f"{str(folder)!r} {why}", str(folder))
