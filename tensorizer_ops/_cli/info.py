"""``info``: the tensors of a file, and how it stores them. Needs no torch."""

from __future__ import annotations

import contextlib
import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from tensorizer_ops import errors
from tensorizer_ops._cli.main import report, status_of
from tensorizer_ops._cli.options import reading
from tensorizer_ops._cli.output import name_of, name_text, print_table, safe, size_text
from tensorizer_ops._front.inspection import File, StoredTensor

# How much of a text of the metadata is shown; --json has all of it.
_MOST_TEXT = 200


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
    globs = given.filter or ["*"]
    tensors = [t for t in file.index() if any(fnmatchcase(t.name, glob) for glob in globs)]
    if given.json:
        print(json.dumps(_facts(file, tensors)))
        return
    if given.names:
        place = f"{name_of(file)}: " if len(given.uri) > 1 else ""
        for tensor in tensors:
            print(f"{place}{name_text(tensor.name)}")
        return
    if number:
        print()
    if len(given.uri) > 1:
        print(name_of(file))
    _print_summary(file, tensors)
    if given.by_prefix is not None:
        print()
        _print_prefixes(tensors, given.by_prefix)
    elif tensors:
        print()
        _print_tensors(tensors)


def hashes_of(file: File) -> list[str]:
    """Return the kinds of hashes in a file; none if a stream has passed them."""
    try:
        return file.hashes()[1]
    except errors.InvalidArgument:
        return []


def stored_size(tensors: Sequence[StoredTensor]) -> int:
    """Return how many bytes of data the file has for these; tied tensors are stored once."""
    return sum({t.data_offset: t.data_size for t in tensors if t.data_size}.values())


def alignment_of(tensors: Sequence[StoredTensor]) -> int | None:
    """Return the largest power of two that all data begins at a multiple of; None without data."""
    joined = 0
    for tensor in tensors:
        if tensor.data_size:
            joined |= tensor.data_offset
    return joined & -joined or None


def _facts(file: File, tensors: Sequence[StoredTensor]) -> dict[str, object]:
    form = file.format()
    return {
        "file": name_of(file),
        "format": form.name,
        "version": form.version,
        "encrypted": form.encrypted,
        "authenticated": form.authenticated,
        "hashes": hashes_of(file),
        "digest_chunk": file.digest_chunk(),
        "keeps_digests": form.keeps_digests,
        "alignment": alignment_of(tensors),
        "size": stored_size(tensors),
        "metadata": file.metadata(),
        "tensors": [
            {
                "name": tensor.name,
                "dtype": tensor.dtype,
                "shape": tensor.shape,
                "size": tensor.memory_size,
                "offset": tensor.data_offset,
            }
            for tensor in tensors
        ],
    }


def _print_summary(file: File, tensors: Sequence[StoredTensor]) -> None:
    form = file.format()
    lines = [("format", f"{form.name}, version {form.version}" if form.version else form.name)]
    lines.append(("tensors", f"{len(tensors)}, {size_text(stored_size(tensors))}"))
    if tensors:
        lines.append(("dtypes", _dtypes(tensors)))
    if alignment := alignment_of(tensors):
        lines.append(("alignment", size_text(alignment)))
    lines.append(("encryption", _encryption(file)))
    hashes = ", ".join(hashes_of(file)) or "none"
    if chunk := file.digest_chunk():
        hashes += f" (chunks of {size_text(chunk)})"
    lines.append(("hashes", hashes))
    for key, value in file.metadata().items():
        shown = value if len(value) <= _MOST_TEXT else value[:_MOST_TEXT] + "..."
        lines.append(("metadata", safe(f"{key} = {shown}")))
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f"{name:{width}}  {value}")


def key_cost_of(file: File) -> tuple[int, int] | None:
    """Return the passes and the memory that derive the key of a file from a passphrase."""
    names = file.names()
    if not names:
        return None
    with contextlib.suppress(errors.InvalidArgument):  # a stream has passed the header that has it
        return file.key_cost(names[0])
    return None


def _encryption(file: File) -> str:
    form = file.format()
    if not form.encrypted:
        return "none"
    cost = key_cost_of(file)
    key = f"from a passphrase ({cost[0]} passes over {size_text(cost[1])})" if cost else "random"
    covers = "data, names and shapes" if form.authenticated else "data alone"
    return f"XSalsa20-Poly1305; the key is {key}; authenticates {covers}"


def _totals(
    tensors: Sequence[StoredTensor], key: Callable[[StoredTensor], str]
) -> list[tuple[str, int, int]]:
    """Return for each key how many tensors have it, and their bytes; most bytes first."""
    groups: dict[str, list[StoredTensor]] = {}
    for tensor in tensors:
        groups.setdefault(key(tensor), []).append(tensor)
    totals = [(name, len(group), stored_size(group)) for name, group in groups.items()]
    return sorted(totals, key=lambda total: -total[2])


def _dtypes(tensors: Sequence[StoredTensor]) -> str:
    totals = _totals(tensors, lambda tensor: tensor.dtype or "unknown")
    return ", ".join(f"{name} ({count}, {size_text(size)})" for name, count, size in totals)


def _print_prefixes(tensors: Sequence[StoredTensor], depth: int) -> None:
    totals = _totals(tensors, lambda tensor: ".".join(tensor.name.split(".")[:depth]))
    rows = [(name_text(name), str(count), size_text(size)) for name, count, size in totals]
    print_table(("prefix", "tensors", "size"), rows, right=(1, 2))


def _print_tensors(tensors: Sequence[StoredTensor]) -> None:
    rows = [
        (name_text(t.name), t.dtype or "unknown", str(list(t.shape)), size_text(t.memory_size))
        for t in tensors
    ]
    print_table(("name", "dtype", "shape", "size"), rows, right=(3,))
