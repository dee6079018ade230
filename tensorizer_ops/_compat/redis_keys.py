"""Writes the keys of a file in Redis, for ``to_redis()``."""

from __future__ import annotations

import re
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

from tensorizer_ops._compat.catalog import Catalog

_HEADER = b":header:0"
# The keys of a process that was killed expire after a day, as those of save() do.
_EXPIRES = 86400


def write_keys(
    redis_client: Any, prefix: str, catalog: Catalog, internals: Any, *, replace: bool
) -> None:
    """Write the bytes of a file to keys under a prefix.

    If ``replace``, these are all keys of the file then. Otherwise keys that exist stay.
    """

    def read(begin: int, end: int) -> bytes:
        return bytes(internals.bytes(begin, end - begin).numpy().data)

    def values() -> Iterator[tuple[str, bytes]]:
        yield f"{prefix}:header:0", read(0, min(catalog.header_offsets))
        for i in catalog.stored(catalog.kept):
            header, data = catalog.header_offsets[i], catalog.data_offsets[i]
            key = f"{prefix}:{catalog.names[i]}"
            if not replace and redis_client.exists(f"{key}:{header}"):
                continue
            yield f"{key}:{header}", read(header, data)
            yield f"{key}:{data}", read(data, data + catalog.data_sizes[i])

    if replace:
        _replace_keys(redis_client, prefix, values())
        return
    for key, value in values():
        redis_client.set(key, value)


def _replace_keys(redis_client: Any, prefix: str, values: Iterable[tuple[str, bytes]]) -> None:
    """Write keys and values, and remove the other keys of the file under the prefix.

    As save() does: the values go to keys of other names, which one transaction renames.

    Args:
        redis_client: an object like ``redis.Redis``.
        prefix: the prefix of the keys.
        values: the keys and their values.
    """
    staged = f"{prefix}.saving-{uuid.uuid4().hex}"
    moves: dict[str, str] = {}
    try:
        for key, value in values:
            name = f"{staged}:{len(moves)}"
            moves[name] = key
            redis_client.set(name, value, ex=_EXPIRES)

        def commit(pipeline: Any) -> None:
            there = _keys_of(prefix.encode(), _names_under(pipeline, prefix.encode()))
            pipeline.multi()
            for older in there:
                pipeline.unlink(older)
            for name, key in moves.items():
                pipeline.rename(name, key)
                pipeline.persist(key)

        redis_client.transaction(commit, prefix.encode() + _HEADER)
    except BaseException:
        for name in moves:
            redis_client.delete(name)
        raise


def _names_under(redis_client: Any, prefix: bytes) -> list[bytes]:
    pattern = re.sub(rb"([*?\[\]\\])", rb"\\\1", prefix) + b":*"
    names = redis_client.scan_iter(match=pattern, count=1000)
    return [name.encode() if isinstance(name, str) else name for name in names]


def _keys_of(prefix: bytes, names: list[bytes]) -> list[bytes]:
    """Return the keys ``PREFIX:NAME:OFFSET``, without those of files with longer prefixes."""
    ends = {name.removesuffix(_HEADER) for name in names if name.endswith(_HEADER)}
    if prefix not in ends:
        return []  # there is no file, and such keys may be those of one with a shorter prefix
    # How the keys of the other files start. None of these begins with another one.
    inner: list[bytes] = []
    for start in sorted(end + b":" for end in ends - {prefix}):
        if not inner or not start.startswith(inner[-1]):
            inner.append(start)

    def is_own(key: bytes) -> bool:
        named, _, offset = key.rpartition(b":")
        if not offset.isdigit() or len(named) <= len(prefix):
            return False
        # Only the last start that is not greater can be one: all names between a start and a name
        # that begins with it begin with it, too.
        at = bisect_right(inner, named)
        return at == 0 or not named.startswith(inner[at - 1])

    return [key for key in set(names) if is_own(key)]
