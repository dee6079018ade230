"""System calls that Python has no function for, as ``tensorizer._syscalls`` offers them."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

__all__ = ("has_fallocate", "prefault", "try_fallocate")

_libc = ctypes.CDLL(None, use_errno=True)
# musl and glibc have both; what lacks one says so when it is asked for.
_fallocate: Any = getattr(_libc, "fallocate", None)
_MADV_POPULATE_WRITE = 23


def has_fallocate() -> bool:
    """Whether the system can reserve room for a file."""
    return _fallocate is not None


def try_fallocate(fd: int, offset: int, length: int, suppress_all_errors: bool = False) -> bool:
    """Reserve room in a file, whose size grows to hold it.

    Args:
        fd: the file's descriptor.
        offset: where the room begins.
        length: its bytes.
        suppress_all_errors: return ``False`` whatever goes wrong. Otherwise only where the file
            system cannot reserve room.

    Raises:
        OSError: the system refuses.
    """
    if _fallocate is None:
        return False
    numbers = (ctypes.c_int(fd), ctypes.c_int(0), ctypes.c_int64(offset), ctypes.c_int64(length))
    if _fallocate(*numbers) == 0:
        return True
    error = ctypes.get_errno()
    if suppress_all_errors or error == errno.EOPNOTSUPP:
        return False
    raise OSError(error, os.strerror(error))


def prefault(address: Any, length: int) -> None:
    """Have the system give new memory its pages now, for writing.

    Args:
        address: of whole pages; a number, or what ctypes takes for a pointer.
        length: their bytes, which may be set to zero.
    """
    advice = (ctypes.c_size_t(length), ctypes.c_int(_MADV_POPULATE_WRITE))
    pages = ctypes.c_void_p(address) if isinstance(address, int) else address
    if _libc.madvise(pages, *advice) == 0:
        return
    error = ctypes.get_errno()
    if error != errno.EINVAL:  # Linux before 5.14
        raise OSError(error, os.strerror(error))
    ctypes.memset(address, 0, length)
