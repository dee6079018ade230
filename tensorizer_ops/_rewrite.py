"""Encrypts, decrypts and re-encrypts files, and gives one digest for all that a file holds."""

from __future__ import annotations

import torch

from tensorizer_ops._options import Hashes, Options, as_text
from tensorizer_ops._progress import Progress, reported
from tensorizer_ops._targets import Target, to_uri


def encrypt(
    source: Target,
    target: Target,
    *,
    key: str,
    kdf: str = "moderate",
    hashes: Hashes = "all",
    threads: int = 0,
    source_options: Options | None = None,
    target_options: Options | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a file anew, encrypted.

    It is streamed from one place to the other, and every hash of it is checked on the way; the
    target appears when all is well, and may be the source unless that is written in place.

    Args:
        source: where the file is.
        target: where it goes.
        key: the name of a key (``env:NAME``, ``file:PATH``, ``passphrase-env:NAME``,
            ``passphrase-file:PATH`` or ``named:NAME``).
        kdf: how hard it is to derive a key from a passphrase: ``min``, ``interactive``,
            ``moderate``, ``sensitive``, or ``PASSES,BYTES``.
        hashes: which hashes to write; an encrypted file has no CRC32.
        threads: how many threads compute; 0 is every CPU that the process may use.
        source_options, target_options: those of loads and saves.
        progress: called with the bytes that have moved, and are to move.
    """
    options = {**(target_options or {}), "key": key, "kdf": kdf}
    _rewrite(source, target, source_options, options, hashes, threads, progress)


def decrypt(
    source: Target,
    target: Target,
    *,
    key: str,
    hashes: Hashes = "all",
    threads: int = 0,
    source_options: Options | None = None,
    target_options: Options | None = None,
    progress: Progress | None = None,
) -> None:
    """Write an encrypted file anew, as a plain one; the rest is as in :func:`encrypt`."""
    options = {**(source_options or {}), "key": key}
    _rewrite(source, target, options, target_options, hashes, threads, progress)


def rekey(
    source: Target,
    target: Target,
    *,
    old_key: str,
    new_key: str,
    kdf: str = "moderate",
    hashes: Hashes = "all",
    threads: int = 0,
    source_options: Options | None = None,
    target_options: Options | None = None,
    progress: Progress | None = None,
) -> None:
    """Write an encrypted file anew, with another key; the rest is as in :func:`encrypt`."""
    opening = {**(source_options or {}), "key": old_key}
    closing = {**(target_options or {}), "key": new_key, "kdf": kdf}
    _rewrite(source, target, opening, closing, hashes, threads, progress)


def _rewrite(
    source: Target,
    target: Target,
    source_options: Options | None,
    target_options: Options | None,
    hashes: Hashes,
    threads: int,
    progress: Progress | None,
) -> None:
    reader = torch.classes.tensorizer.Reader(to_uri(source), as_text(source_options or {}))
    with reported(reader, progress):
        reader.rewrite(to_uri(target), hashes, as_text(target_options or {}), threads)


def digest(uri: Target, *, threads: int = 0, options: Options | None = None) -> str:
    """One digest for all that a file holds: names, types, shapes and data.

    It is the same for a plain and an encrypted file, for any hashes and any order of the tensors.
    ``load(uri, options={"digest": …})`` loads nothing else. Every byte of data is read for it.
    """
    found: str = torch.ops.tensorizer.digest(
        to_uri(uri), threads=threads, options=as_text(options or {})
    )
    return found
