"""Files of this machine that somebody else may have made."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS_WRITE = 0o022


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
