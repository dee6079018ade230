"""Converts the paths and URIs that callers pass to the URIs that the ops take."""

from __future__ import annotations

import io
import os
import re
import urllib.parse
from typing import Protocol, TypeGuard

from tensorizer_ops import errors
from tensorizer_ops._arguments import is_unicode, not_unicode

# Perhaps a URI that was converted to a path, which drops the second slash. The library knows the
# schemes, and refuses them in a str.
_URI_AS_PATH = re.compile(r"(?!fd:)[a-z][a-z0-9+.-]*:/", re.IGNORECASE)

Target = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class Readable(Protocol):
    """A file object that reads bytes."""

    def read(self, size: int = ..., /) -> bytes | None: ...


class Writable(Protocol):
    """A file object that takes bytes."""

    def write(self, data: bytes, /) -> int | None: ...


# What can be read, and what can be written.
Source = Target | Readable | bytearray | memoryview
Sink = Target | Writable


def is_target(place: object) -> TypeGuard[Target]:
    """Return whether ``place`` is a path or a URI.

    Some file objects also have a path, as those of fsspec on SMB servers. They are read and written
    by their methods, because the path is not one of this machine.
    """
    return isinstance(place, str | bytes | os.PathLike) and not isinstance(place, io.IOBase)


def to_uri(target: Target) -> str:
    """Return the URI that the ops take for ``target``.

    A valid string is returned unchanged. Path-like objects and bytes are always paths, never URIs,
    and need not be UTF-8: they become a percent-encoded ``file://`` URI, as does a string from
    ``os.fsdecode()`` that is not valid UTF-8.
    """
    if isinstance(target, bytes) and b"\0" in target:
        raise errors.InvalidArgument(
            f"{len(target)} bytes that hold a NUL were given as a path: if they are a file, give "
            "io.BytesIO() of them",
        )
    if isinstance(target, os.PathLike) and _URI_AS_PATH.match(text := os.fsdecode(target)):
        target = text
    # os.fsdecode() turns bytes that are not UTF-8 into surrogates, which the ops do not accept.
    if isinstance(target, str) and is_unicode(target):
        return target
    try:
        path = os.fsencode(os.path.abspath(target))
    except UnicodeEncodeError:  # which would show a URI and its password
        raise not_unicode("the path or URI") from None
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
