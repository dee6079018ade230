"""Where a file is, as callers say it, and as the ops take it."""

from __future__ import annotations

import os
import re
import urllib.parse

Target = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def to_uri(target: Target) -> str:
    """What the ops take for ``target``: a string as it is, a path as a path.

    A path-like object is never a URI, and the bytes of a path need not be UTF-8: where they could
    be mistaken for something else, or are no text, the path travels percent-encoded.
    """
    # What os.fsdecode() makes of bytes that are not UTF-8 is no text that the ops could take.
    if isinstance(target, str) and not any("\udc80" <= c <= "\udcff" for c in target):
        return target
    path = os.fsencode(os.path.abspath(target))
    return "file://" + urllib.parse.quote_from_bytes(path)


def local_path(target: Target) -> str | None:
    """The path of ``target``, unless it is on a server or an open descriptor."""
    if not isinstance(target, str):
        return os.fsdecode(target)
    if re.match(r"[a-z][a-z0-9+.-]*://", target, re.IGNORECASE):
        scheme, _, rest = target.partition("://")
        path = urllib.parse.unquote_to_bytes("/" + rest.partition("/")[2])
        return os.fsdecode(path) if scheme.lower() == "file" else None
    return None if target.startswith("fd:") else os.path.expanduser(target)
