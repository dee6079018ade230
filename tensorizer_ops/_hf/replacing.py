"""Files that are written to a folder in which others may write at the same time."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

from tensorizer_ops import errors
from tensorizer_ops._base.folder import raise_own

# The names of files that a killed program leaves behind. They do not contain the name of the file:
# transformers looks for parts of names, and would take the file for a vocabulary.
PART = re.compile(r"\.[0-9a-f]{16}\.part")
# A folder in which files are written by its descriptor.
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def opened(target: str) -> Iterator[int]:
    """Open the folder of a copy until the block ends, and make it if it is missing."""
    try:
        os.makedirs(target, exist_ok=True)
        place = os.open(target, _FOLDER)
    except OSError as error:
        raise_own(error)
    try:
        yield place
    finally:
        os.close(place)


def _open_inner(path: str, place: int) -> int:
    """Open a folder in an open one, and make it if it is missing."""
    name = os.path.basename(path)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=place)
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=place)
    except NotADirectoryError:
        raise errors.InvalidArgument(
            f"{path!r} is a symbolic link or a file, in the place of a folder to write to: move it "
            "away, or give another target"
        ) from None
    except OSError as error:
        error.filename = path
        raise_own(error)


@contextlib.contextmanager
def replacing(place: int, target: str, name: str) -> Iterator[BinaryIO]:
    """Give a file that replaces another one, unless an exception leaves the block.

    The name counts from the open folder ``place``, whose path is ``target``. Links to folders are
    not followed, because others may make them at any time to have files elsewhere replaced.
    """
    *folders, last = name.split("/")
    part = f".{secrets.token_hex(8)}.part"
    with contextlib.ExitStack() as stack:
        for count in range(len(folders)):
            place = _open_inner(os.path.join(target, *folders[: count + 1]), place)
            stack.callback(os.close, place)
        path = os.path.join(target, name)
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.lstat(last, dir_fd=place).st_mode):
                raise errors.InvalidArgument(
                    f"{path!r} is a folder, in the place of a file: move it away"
                )
        try:
            with open(part, "x+b", opener=partial(os.open, mode=0o666, dir_fd=place)) as file:
                yield file
            os.replace(part, last, src_dir_fd=place, dst_dir_fd=place)
        except BaseException as error:
            with contextlib.suppress(OSError):  # others may have put a folder there
                os.unlink(part, dir_fd=place)
            if isinstance(error, errors.Error) or not isinstance(error, OSError):
                raise
            error.filename = path
            raise_own(error)
