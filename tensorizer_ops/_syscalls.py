"""System calls without a function in Python, with the interface of ``tensorizer._syscalls``."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

__all__ = ("has_fallocate", "prefault", "try_fallocate")

_libc = ctypes.CDLL(None, use_errno=True)
# glibc and musl have fallocate and madvise; without fallocate, has_fallocate() returns False.
_fallocate: Any = getattr(_libc, "fallocate", None)
_MADV_POPULATE_WRITE = 23


def has_fallocate() -> bool:
    """Return whether the C library can reserve space for files."""
    return _fallocate is not None


def try_fallocate(fd: int, offset: int, length: int, suppress_all_errors: bool = False) -> bool:
    """Reserve space in a file, which grows to include it; return whether that succeeded.

    Args:
        fd: the file's descriptor.
        offset: where the space begins.
        length: its size in bytes.
        suppress_all_errors: return ``False`` for any error, rather than only if the file system
            cannot reserve space.

    Raises:
        OSError: the system call failed.
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
    """Populate the pages of new memory now, for writing.

    Args:
        address: the address of the first page: a number, or anything that ctypes accepts as a
            pointer.
        length: the size of the pages in bytes. Their content may be set to zero.
    """
    advice = (ctypes.c_size_t(length), ctypes.c_int(_MADV_POPULATE_WRITE))
    pages = ctypes.c_void_p(address) if isinstance(address, int) else address
    if _libc.madvise(pages, *advice) == 0:
        return
    error = ctypes.get_errno()
    if error != errno.EINVAL:  # Linux before 5.14
        raise OSError(error, os.strerror(error))
    ctypes.memset(address, 0, length)
