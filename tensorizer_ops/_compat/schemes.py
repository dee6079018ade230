"""The schemes of URIs, as the table of the library has them."""

from __future__ import annotations

from tensorizer_ops import _python

# The folder of the library that serves each: {"https": "http", "gs": "s3", "file": "local", …}.
_FOLDERS = dict(_python.scheme_folders())


def stream_kind(uri: str) -> str:
    """The kind of file object that ``stream_io`` has for ``uri``: ``http``, ``s3`` or ``redis``.

    ``""`` is for paths, and for what only the library opens: the defaults that ``stream_io`` has
    for ``s3://`` are not for the other schemes of S3.
    """
    scheme, separator, _ = uri.partition("://")
    scheme = scheme.lower()
    kind = _FOLDERS.get(scheme, "") if separator else ""
    return kind if kind in ("http", "redis") or scheme == "s3" else ""
