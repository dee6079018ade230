"""Converts the paths and URIs that callers pass to the URIs that the ops take."""

from __future__ import annotations

import os
import re
import urllib.parse

Target = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def to_uri(target: Target) -> str:
    """Return the URI that the ops take for ``target``.

    A valid string is returned unchanged. Path-like objects and bytes are always paths, never URIs,
    and need not be UTF-8: they become a percent-encoded ``file://`` URI, as does a string from
    ``os.fsdecode()`` that is not valid UTF-8.
    """
    # os.fsdecode() turns bytes that are not UTF-8 into surrogates, which the ops do not accept.
    if isinstance(target, str) and not any("\udc80" <= c <= "\udcff" for c in target):
        return target
    path = os.fsencode(os.path.abspath(target))
    return "file://" + urllib.parse.quote_from_bytes(path)


def local_path(target: Target) -> str | None:
    """Return the path of ``target``, or ``None`` if it is on a server or an open descriptor."""
    if not isinstance(target, str):
        return os.fsdecode(target)
    if re.match(r"[a-z][a-z0-9+.-]*://", target, re.IGNORECASE):
        scheme, _, rest = target.partition("://")
        path = urllib.parse.unquote_to_bytes("/" + rest.partition("/")[2])
        return os.fsdecode(path) if scheme.lower() == "file" else None
    return None if target.startswith("fd:") else os.path.expanduser(target)
