"""Converts the paths and URIs that callers pass to the URIs that the ops take."""

from __future__ import annotations

import io
import os
import urllib.parse
from typing import Protocol, TypeVar

from tensorizer_ops import _core, errors
from tensorizer_ops._base.arguments import is_unicode, not_unicode

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
Given = TypeVar("Given")


def place_of(given: Given) -> str | Given:
    """Return the URI that the ops take for a path or a URI, and a file object as it is.

    Some file objects also have a path, as those of fsspec on SMB servers. They are read and written
    by their methods, because the path is not one of this machine.
    """
    if isinstance(given, str | bytes | os.PathLike) and not isinstance(given, io.IOBase):
        return to_uri(given)
    return given


def is_uri(target: Target) -> bool:
    """Return whether ``target`` is a URI, and no path; raise for a URI that is not whole.

    Of path-like objects and bytes, only what has a slash behind the scheme is one. ``pathlib``
    drops the second slash of a URI, which is then refused.
    """
    text = os.fsdecode(target)
    first, slash, _ = text.partition("/")
    if not isinstance(target, str) and not (slash and first.endswith(":")):
        return False
    if not _core.is_uri(text.encode(errors="surrogatepass")):
        return False
    if not is_unicode(text):
        raise errors.InvalidArgument(
            "the URI is not UTF-8: only paths of this machine may have other bytes"
        )
    return True


def to_uri(target: Target) -> str:
    """Return the URI that the ops take for ``target``.

    A valid string is returned unchanged: the library refuses a URI that is not whole. Paths need
    not be UTF-8: path-like objects, bytes, and strings from ``os.fsdecode()`` that are not valid
    UTF-8 become a percent-encoded ``file://`` URI. A leading ``~`` is the home directory in each.
    """
    if isinstance(target, str) and is_unicode(target):
        return target
    if isinstance(target, bytes) and b"\0" in target:
        raise errors.InvalidArgument(
            f"{len(target)} bytes that hold a NUL were given as a path: if they are a file, give "
            "io.BytesIO() of them",
        )
    if is_uri(target):
        return os.fsdecode(target)
    # os.fsdecode() turns bytes that are not UTF-8 into surrogates, which the ops do not accept.
    try:
        path = os.fsencode(os.path.join(os.getcwd(), os.path.expanduser(os.fsdecode(target))))
    except UnicodeEncodeError:
        raise not_unicode("the path") from None
    return "file://" + urllib.parse.quote_from_bytes(path)


def local_path(target: Target) -> str | None:
    """Return the path of ``target``, or ``None`` if it is on a server or an open descriptor."""
    text = os.fsdecode(target)
    if is_uri(target):
        scheme, _, rest = text.partition("://")
        path = urllib.parse.unquote_to_bytes("/" + rest.partition("/")[2])
        return os.fsdecode(path) if scheme.lower() == "file" else None
    return os.path.expanduser(text)
