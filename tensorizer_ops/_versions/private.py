"""Files of this machine that somebody else may have made."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS_WRITE = 0o022


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
