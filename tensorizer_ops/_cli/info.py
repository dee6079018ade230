"""``info``: the tensors of a file, and how it stores them. Needs no torch."""

from __future__ import annotations

import json
from argparse import Namespace

from tensorizer_ops import errors
from tensorizer_ops._base.tables import name_text
from tensorizer_ops._cli.main import report, status_of
from tensorizer_ops._cli.options import reading
from tensorizer_ops._cli.output import bold, most_rows, name_of
from tensorizer_ops._front.info import (
    Info,
    alignment_of,
    delta_of,
    lines_of,
    stored_size,
    summary_of,
    table_by_prefix,
)
from tensorizer_ops._front.inspection import File, info_of
from tensorizer_ops._front.selection import matching


def info(given: Namespace) -> int:
    """Show all files, and go on after one that cannot be opened."""
    options = reading(given)
    worst = 0
    for number, uri in enumerate(given.uri):
        try:
            _show(given, File(uri, options), number)
        except errors.Error as error:
            report(error, given.verbose)
            worst = max(worst, status_of(error))
    return worst


def _show(given: Namespace, file: File, number: int) -> None:
    tensors = file.index()
    if given.filter:
        what = f"{name_of(file)}: --filter"
        names = set(matching(what, given.filter, [tensor.name for tensor in tensors]))
        tensors = [tensor for tensor in tensors if tensor.name in names]
    if given.names:
        place = f"{name_of(file)}: " if len(given.uri) > 1 else ""
        for tensor in tensors:
            print(f"{place}{name_text(tensor.name)}")
        return
    found = info_of(file)._replace(tensors=tensors)
    if given.json:
        print(json.dumps(_facts(file, found)))
        return
    if number:
        print()
    if len(given.uri) > 1:
        print(bold(name_of(file)))
    if given.by_prefix is None:
        lines = [*lines_of(found, most_rows(), bold)]
    else:
        totals = table_by_prefix(tensors, given.by_prefix, most_rows())
        lines = [*summary_of(found).lines(bold), "", *totals.lines(bold)]
    print("\n".join(lines))


def _facts(file: File, found: Info) -> dict[str, object]:
    return {
        "file": name_of(file),
        "format": found.format,
        "version": found.version,
        "encrypted": found.encrypted,
        "authenticated": found.authenticated,
        "hashes": found.hashes,
        "digest_chunk": found.digest_chunk,
        "keeps_digests": file.format().keeps_digests,
        "alignment": alignment_of(found.tensors),
        "size": stored_size(found.tensors),
        "delta": _delta(found),
        "metadata": found.metadata,
        "tensors": [
            {
                "name": tensor.name,
                "dtype": tensor.dtype,
                "shape": tensor.shape,
                "size": tensor.memory_size,
                "offset": tensor.data_offset,
            }
            for tensor in found.tensors
        ],
    }


def _delta(found: Info) -> dict[str, object] | None:
    delta = delta_of(found)
    if delta is None:
        return None
    return {
        "base": delta.base,
        "target": delta.target,
        "target_size": delta.target_size,
        **{
            kind: {"tensors": len(tensors), "size": stored_size(tensors)}
            for kind, tensors in (("changes", delta.changes), ("whole", delta.whole))
        },
    }
