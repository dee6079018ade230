"""Converts, encrypts and decrypts files, and computes the digest of their content."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import check_names, checked
from tensorizer_ops._base.file_objects import label, open_source
from tensorizer_ops._base.options import Hashes, Options, as_text
from tensorizer_ops._base.progress import Progress, reported
from tensorizer_ops._base.targets import Source, Target, local_path, to_uri
from tensorizer_ops._front import torch_files
from tensorizer_ops._front.load_save import run_save, save_request
from tensorizer_ops._front.selection import Rename, known_names, new_names


class Changes(NamedTuple):
    """What a conversion changes of the tensors."""

    # Returns those of the names in the source that are written; all if None.
    select: Callable[[Sequence[str]], Sequence[str]] | None = None
    rename: Rename | None = None
    dtype: torch.dtype | None = None

    def names(self, known: Sequence[str]) -> dict[str, str]:
        """Return the new name of each tensor that is written."""
        chosen = list(known if self.select is None else self.select(known))
        return dict(zip(chosen, new_names(chosen, self.rename), strict=True))


_NO_CHANGES = Changes()


@checked
def convert(
    source: Target,
    target: Target,
    *,
    names: Sequence[str] | None = None,
    rename: Rename | None = None,
    dtype: torch.dtype | None = None,
    entry: str | None = None,
    hashes: Hashes = "chunked",
    threads: int = 0,
    source_options: Options | None = None,
    target_options: Options | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a copy of a file in the format that the target's name or options ask for.

    The data is streamed from source to target, within the option ``memory_ceiling``, and every hash
    in the source is checked on the way. Tensors keep their order, and the metadata is copied. The
    target appears when the copy is complete and correct.

    Args:
        source: the file to read, of any format, as for :func:`load`. Also a PyTorch checkpoint on
            this machine (``.pt``, ``.pth``, ``.bin``, ``.ckpt``), or a folder or index of such
            shards, of which no code runs; a warning says what of it is left out.
        target: the file to write, in the format that the option ``format`` in ``target_options``
            or the ending of the name asks for, as for :func:`save`.
        names: the tensors to write; by default every tensor in the source.
        rename: the new names: regular expressions with their replacements
            (``{"^model[.]": "", "[.]gamma$": ".weight"}``), of which the first that is found in a
            name counts, or a function of the old name.
        dtype: the type that real floating-point tensors are cast to; other tensors keep theirs.
        entry: the entry of a PyTorch checkpoint that has the tensors, such as ``"model"`` or
            ``"state.ema"``; by default it is found.
        hashes: which hashes to write.
        threads: how many threads compute; 0 means one for every CPU that the process may use.
        source_options, target_options: options as for loads and for saves.
        progress: called with the bytes moved so far and the bytes to move in all.

    Raises:
        KeyError: a name is not in the source.
        ValueError: the target's format cannot hold a tensor of the source, which it names; or two
            tensors would have one name, or a pattern of ``rename`` matches none. Nothing is
            written.
    """
    wanted = None if names is None else list(names)
    check_names("names", wanted or ())

    def select(known: Sequence[str]) -> Sequence[str]:
        return known_names(wanted or (), known, label(source))

    def warn(text: str) -> None:
        warnings.warn(text, stacklevel=5)  # at the caller of this function, behind its check

    changes = Changes(None if wanted is None else select, rename, dtype)
    how = (hashes, threads, source_options, target_options, progress)
    convert_changed(source, target, changes, entry, *how, tell=warn)


def convert_changed(
    source: Target,
    target: Target,
    changes: Changes,
    entry: str | None,
    hashes: Hashes,
    threads: int,
    source_options: Options | None,
    target_options: Options | None,
    progress: Progress | None,
    tell: Callable[[str], None],
) -> None:
    """Convert a file or a PyTorch checkpoint, and ``tell`` what is left out of the latter."""
    found = torch_files.find(source)
    if found is None:
        if entry is not None:
            raise errors.InvalidArgument(
                "entry= is for PyTorch checkpoints, and the source is none"
            )
        how = (hashes, threads, progress)
        _rewrite(source, target, source_options, target_options, *how, changes)
        return
    if source_options:
        raise errors.InvalidArgument(
            f"{label(source)}: a PyTorch checkpoint is read without options and without a key"
        )
    if "format" not in (target_options or {}):
        refuse_folder_for_store(source, target)
    tensors, notes = torch_files.load(found, entry)
    for text in notes:
        tell(text)
    kept = changes.names(list(tensors))
    request = save_request(hashes, threads, target_options, {"format": "pt"})
    job = torch.classes.tensorizer._BackgroundSave()
    chosen = [tensors[name] for name in kept]
    with reported(job, progress):
        run_save(job, to_uri(target), list(kept.values()), chosen, request, changes.dtype)


@checked
def encrypt(
    source: Target,
    target: Target,
    *,
    key: str,
    kdf: str = "moderate",
    hashes: Hashes = "chunked",
    threads: int = 0,
    source_options: Options | None = None,
    target_options: Options | None = None,
    progress: Progress | None = None,
) -> None:
    """Write an encrypted copy of a file.

    The data is streamed from source to target, and every hash in the source is checked on the way.
    The target appears when the copy is complete and correct. It may be the source itself, unless
    that is written in place.

    Args:
        source: the file to read.
        target: the file to write.
        key: the name of a key (``env:NAME``, ``file:PATH``, ``passphrase-env:NAME``,
            ``passphrase-file:PATH`` or ``named:NAME``).
        kdf: the cost of deriving a key from a passphrase: ``min``, ``interactive``, ``moderate``,
            ``sensitive``, or ``PASSES,BYTES``.
        hashes: which hashes to write; an encrypted file has no CRC32.
        threads: how many threads compute; 0 means one for every CPU that the process may use.
        source_options, target_options: options as for loads and for saves.
        progress: called with the bytes moved so far and the bytes to move in all.
    """
    options = {**as_text(target_options), "key": key, "kdf": kdf}
    _rewrite(source, target, source_options, options, hashes, threads, progress)


@checked
def decrypt(
    source: Target,
    target: Target,
    *,
    key: str,
    hashes: Hashes = "chunked",
    threads: int = 0,
    source_options: Options | None = None,
    target_options: Options | None = None,
    progress: Progress | None = None,
) -> None:
    """Write an unencrypted copy of an encrypted file; otherwise like :func:`encrypt`."""
    options = {**as_text(source_options), "key": key}
    _rewrite(source, target, options, target_options, hashes, threads, progress)


@checked
def rekey(
    source: Target,
    target: Target,
    *,
    old_key: str,
    new_key: str,
    kdf: str = "moderate",
    hashes: Hashes = "chunked",
    threads: int = 0,
    source_options: Options | None = None,
    target_options: Options | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a copy of an encrypted file with a new key; otherwise like :func:`encrypt`.

    Args:
        old_key: the name of the key of the source, as ``key`` of :func:`encrypt`.
        new_key: the name of the key of the target.
    """
    opening = {**as_text(source_options), "key": old_key}
    closing = {**as_text(target_options), "key": new_key, "kdf": kdf}
    _rewrite(source, target, opening, closing, hashes, threads, progress)


def _rewrite(
    source: Target,
    target: Target,
    source_options: Options | None,
    target_options: Options | None,
    hashes: Hashes,
    threads: int,
    progress: Progress | None,
    changes: Changes = _NO_CHANGES,
) -> None:
    if "format" not in (target_options or {}):
        refuse_folder_for_store(source, target)
    reader = torch.classes.tensorizer.Reader(to_uri(source), as_text(source_options))
    given = as_text(target_options)
    with reported(reader, progress):
        if changes == _NO_CHANGES:
            reader.rewrite(to_uri(target), hashes, given, threads)
            return
        kept = changes.names(reader.names())
        internals = torch.classes.tensorizer._Internals(reader)
        internals.rewrite(
            to_uri(target), hashes, given, threads, list(kept), list(kept.values()), changes.dtype
        )


def refuse_folder_for_store(source: Target, target: Target) -> None:
    """Refuse to write a folder's model to what may be meant as a folder of a store."""
    folder = local_path(source)
    if folder is None or not os.path.isdir(folder):
        return
    scheme, _, name = os.fsdecode(target).partition("://")
    if scheme.lower() not in ("s3", "gs"):
        return
    if not name.lower().endswith((".tensors", ".safetensors")):
        raise errors.InvalidArgument(
            f"the source is a folder, and its model is written as one file: give the target a name "
            f"that ends in .tensors or .safetensors, such as {scheme}://…/model.safetensors; "
            "tensorizer-ops upload copies all files of a folder"
        )


class Updated(NamedTuple):
    """What :func:`update` has read."""

    fetched: int  # bytes of tensors that came from the source
    kept: int  # bytes of tensors that the target had already


@checked
def update(
    source: Target,
    target: Target,
    *,
    threads: int = 0,
    source_options: Options | None = None,
    progress: Progress | None = None,
) -> Updated:
    """Bring a local file up to date with a newer version of it.

    Only chunks that the local file does not have are fetched, wherever in the file they are. The
    new file replaces the target when it is complete and correct; it has the tensors, hashes and
    metadata of the source. If there is no target, or one of more than 256 MiB that is more
    than four times as large as the source, and would take longer to read, it becomes a copy.

    Args:
        source: the newer file, saved with ``hashes="chunked"`` or ``"all+chunked"``.
        target: the local file.
        threads: how many threads compute; 0 means one for every CPU that the process may use.
        source_options: options as for loads.
        progress: called with the bytes moved so far and the bytes to move in all.

    Raises:
        ValueError: a file is encrypted, or the source has no digests of chunks.
    """
    reader = torch.classes.tensorizer.Reader(to_uri(source), as_text(source_options))
    with reported(reader, progress):
        return Updated(*reader.update(to_uri(target), threads))


@checked
def digest(
    uri: Source,
    *,
    threads: int = 0,
    options: Options | None = None,
    version: Literal[1, 2] = 1,
    listed: bool = False,
) -> str:
    """Return one digest over the content of a file: names, types, shapes and data.

    The digest does not depend on encryption, on the hashes in the file or on the order of tensors.
    ``load(uri, options={"digest": …})`` raises an error unless the file has that digest. Computing
    it reads every byte of the data, unless ``listed`` is set.

    Args:
        uri: as for :func:`load`.
        threads: how many threads compute; 0 means one for every CPU that the process may use.
        options: options as for loads.
        version: 1 hashes whole tensors. 2 hashes chunks of 1 MiB, so that one large tensor uses
            every CPU, and a file that lists the digests of such chunks can be loaded in part; it is
            also the same for ``.tensors`` and safetensors files of the same tensors.
        listed: make it of the digests that the file lists, and read no data. It is then the digest
            of what was saved, which a load that is pinned to it compares with what it reads.

    Raises:
        ValueError: ``listed`` is set, and the file does not list what that version is made of.
    """
    opened = open_source(uri, options)
    found: str = opened.reader.digest(threads or opened.threads, version, listed)
    return found
