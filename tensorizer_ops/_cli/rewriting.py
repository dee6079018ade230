"""``convert``, ``consolidate`` and ``copy``."""

from __future__ import annotations

import functools
import os
from argparse import Namespace

from tensorizer_ops import _core
from tensorizer_ops._base.options import Hashes
from tensorizer_ops._base.tables import safe, size_text
from tensorizer_ops._base.targets import local_path, to_uri
from tensorizer_ops._cli.main import as_arguments
from tensorizer_ops._cli.options import reading, refuse_stream
from tensorizer_ops._cli.output import bar, note
from tensorizer_ops._cli.parsers import UsageError
from tensorizer_ops._front.inspection import File

_ENDINGS = (".tensors", ".safetensors")


def convert(given: Namespace) -> int:
    import torch

    from tensorizer_ops._front.rewrite import Changes, convert_changed
    from tensorizer_ops._front.selection import matching

    changes = Changes(
        functools.partial(matching, "--filter", given.filter) if given.filter else None,
        dict(given.map) or None,
        getattr(torch, given.dtype) if given.dtype else None,
    )
    convert_changed(
        given.source,
        given.target,
        changes,
        given.entry,
        given.hashes,
        given.threads,
        reading(given),
        dict(given.target_options),
        bar(given.quiet, given.source),
        lambda text: note(given.quiet, safe(as_arguments(text))),
    )
    return 0


def consolidate(given: Namespace) -> int:
    from tensorizer_ops import checkpoint

    checkpoint.consolidate(
        given.source,
        given.target,
        prefix=given.prefix,
        verify=given.verify,
        hashes=given.hashes,
        threads=given.threads,
        source_options=reading(given),
        target_options=dict(given.target_options),
        progress=bar(given.quiet, given.source),
    )
    return 0


def copy(given: Namespace) -> int:
    from tensorizer_ops._front.rewrite import convert, refuse_folder_for_store, update

    refuse_stream(given.source, "copy looks at it first: use convert")
    options = reading(given)
    given.target = _named_target(given.source, given.target)
    if given.update:
        if given.target_options or given.hashes:
            raise UsageError("--update takes neither --target-options nor --hashes")
        fetched, kept = update(
            given.source,
            given.target,
            threads=given.threads,
            source_options=options,
            progress=bar(given.quiet, given.source),
        )
        note(given.quiet, f"fetched {size_text(fetched)}, kept {size_text(kept)}")
        return 0
    target_options = dict(given.target_options)
    if "format" not in target_options:
        refuse_folder_for_store(given.source, given.target)
        _core.format_of(to_uri(given.target))  # raises for the names of other formats
    hashes, same = _like(given.source, options, given.target)
    convert(
        given.source,
        given.target,
        hashes=given.hashes or hashes,
        threads=given.threads,
        source_options=options,
        target_options={**same, **target_options},
        progress=bar(given.quiet, given.source),
    )
    return 0


def _named_target(source: str, target: str) -> str:
    """Return the target; if it is a folder, that of the name of the source in it, as cp does."""
    folder, path = local_path(target), local_path(source)
    if folder is None or not os.path.isdir(folder) or (path and os.path.isdir(path)):
        return target
    place = path or _core.split_query(source)[0].partition("://")[2].partition("/")[2]
    name = os.path.basename(place)
    return os.path.join(folder, name) if name else target


def _like(source: str, options: dict[str, str], target: str) -> tuple[Hashes, dict[str, str]]:
    """Return the hashes and the options of a save that writes a file like the source."""
    file = File(source, options)
    form = file.format()
    ending = os.path.splitext(target)[1].lower()
    if ending in _ENDINGS and ending != f".{form.name}":
        raise UsageError(
            f"copy keeps the format of the source, which is {form.name}: convert makes {ending}"
        )
    same = {"format": form.name}
    if form.name == "tensors" and form.keeps_digests:
        same["digests"] = "true"
    if form.encrypted:
        if "key" not in options:
            raise UsageError("the file is encrypted: give --key-file or --passphrase-file")
        same["key"] = options["key"]
        if cost := file.cost_of_key():
            same["kdf"] = "{},{}".format(*cost)
    if chunk := file.digest_chunk():
        same["digest_chunk"] = str(chunk)
        if form.encrypted:
            same["plain_digests"] = "true"
    return file.hashes()[0], same
