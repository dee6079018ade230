"""The URI schemes in the library's table."""

from __future__ import annotations

import re

from tensorizer_ops import _core
from tensorizer_ops._base.targets import is_uri

# The library's folder for each scheme: {"https": "http", "gs": "s3", "file": "local", …}.
_FOLDERS = dict(_core.scheme_folders())


def stream_kind(uri: str) -> str:
    """Return the kind of file object that ``stream_io`` has for ``uri``: http, s3 or redis.

    Returns ``""`` for paths and for URIs that only the library opens, including other schemes of
    S3 (``gs://``): ``stream_io``'s S3 defaults apply only to ``s3://``.
    """
    if not is_uri(uri):
        return ""
    scheme, separator, _ = uri.partition("://")
    scheme = scheme.lower()
    kind = _FOLDERS.get(scheme, "") if separator else ""
    return kind if kind in ("http", "redis") or scheme == "s3" else ""


def refuse_uri(path: str) -> None:
    """Raise ``ValueError`` for a URI, which must not become the path of a local file."""
    scheme, separator, _ = path.partition("://")
    if separator and re.fullmatch("[A-Za-z][A-Za-z0-9+.-]+", scheme):
        known = [f"{name}://" for name in _FOLDERS if stream_kind(f"{name}://")]
        raise ValueError(
            f"there is no file object for {scheme.lower()}:// URIs: open a path, or a URI that "
            f"begins with {', '.join(known[:-1])} or {known[-1]}"
        )
