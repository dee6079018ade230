"""Texts in the metadata of files, with a digest: the hashes of tensors do not cover metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from tensorizer_ops import errors

_ENDING = ".sha256"  # of the key of the digest


def sealed(key: str, text: str) -> dict[str, str]:
    """Return what to store for a text."""
    return {key: text, key + _ENDING: _digest(text)}


def unsealed(key: str, texts: Mapping[str, str], file: str) -> str | None:
    """Return the text in the metadata of a file; ``None`` if it has none under this key.

    Raises ``errors.HashMismatch`` for another text than was stored.
    """
    text = texts.get(key)
    if text is not None and texts.get(key + _ENDING, digest := _digest(text)) != digest:
        raise errors.HashMismatch(f"{file}: the text {key!r} in its metadata is damaged")
    return text


def without(key: str, texts: Mapping[str, str]) -> dict[str, str]:
    """Return metadata without a text and its digest."""
    return {name: text for name, text in texts.items() if name not in (key, key + _ENDING)}


def refuse_key(texts: Mapping[str, str], key: str) -> None:
    """Raise if texts to store have a key under which a save stores its own."""
    if without(key, texts) != dict(texts):
        raise errors.InvalidArgument(f"the metadata has {key!r}, which holds the state")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
