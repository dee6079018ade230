"""What the index of a file says, and how it is shown: ``str(info)`` and ``tensorizer-ops info``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tensorizer_ops._base.tables import (
    MOST_ROWS,
    Table,
    name_text,
    safe,
    shortened,
    size_text,
    table_of_tensors,
    tensors_in_words,
)

# In the metadata of a delta: its version, and with these endings, what it says of both models.
_DELTA = "tensorizer_ops.delta"
_DELTA_KEYS = ("base", "target", "size")


class StoredTensor(NamedTuple):
    """The index entry of one tensor."""

    name: str
    dtype: str | None  # torch's name; None in a stream if only the tensor's header has it
    shape: tuple[int, ...]
    header_offset: int
    data_offset: int
    data_size: int
    memory_size: int


class Info(NamedTuple):
    """The format, size, encryption, hashes and tensors of a file. ``print()`` shows a table."""

    format: str  # "tensors" or "safetensors"
    version: int  # of the format; 0 if it has no versions
    encrypted: bool
    authenticated: bool  # whether a key authenticates its index
    metadata: dict[str, str]
    tensors: list[StoredTensor]  # in the order of the file
    hashes: tuple[str, ...] = ()  # their kinds; none if a stream has passed them
    digest_chunk: int = 0  # the size of the chunks that have digests; 0 without such
    # The passes and the memory that derived the key from a passphrase; None for a random one.
    key_cost: tuple[int, int] | None = None

    @property
    def num_tensors(self) -> int:
        """How many tensors the file has."""
        return len(self.tensors)

    @property
    def num_bytes(self) -> int:
        """How many bytes the tensors take in memory."""
        return sum(tensor.memory_size for tensor in self.tensors)

    def __repr__(self) -> str:
        return f"<tensorizer_ops.Info: {_in_words(self)}>"

    def __str__(self) -> str:
        return "\n".join(lines_of(self, MOST_ROWS))

    def _repr_html_(self) -> str:
        return f"{summary_of(self).html()}\n{_tensors(self, MOST_ROWS).html()}"


class Delta(NamedTuple):
    """What a file says as a delta: the digests of two models, and what it has of the newer one."""

    base: str
    target: str
    target_size: int | None  # of the newer model's data, if the file says so
    changes: list[StoredTensor]  # of tensors of the base
    whole: list[StoredTensor]


def delta_of(info: Info) -> Delta | None:
    """Return what a file says as a delta; None if it is none."""
    if _DELTA not in info.metadata:
        return None
    base, target, size = (info.metadata.get(f"{_DELTA}.{key}", "") for key in _DELTA_KEYS)
    whole = [tensor for tensor in info.tensors if tensor.name.startswith("whole/")]
    changes = [tensor for tensor in info.tensors if tensor.name.startswith("changes/")]
    target_size = int(size) if re.fullmatch(r"[0-9]{1,19}", size) else None
    return Delta(base, target, target_size, changes, whole)


def lines_of(info: Info, most: int | None, bold: Callable[[str], str] = str) -> Iterator[str]:
    """Yield the lines of a table with at most so many tensors; ``bold`` marks headers."""
    yield from summary_of(info).lines(bold)
    if info.tensors:
        yield ""
        yield from _tensors(info, most).lines(bold)


def summary_of(info: Info) -> Table:
    """Return what the file holds beside its tensors."""
    form = f"{info.format}, version {info.version}" if info.version else info.format
    rows = [
        ("format", form),
        ("tensors", f"{info.num_tensors}, {size_text(stored_size(info.tensors))}"),
    ]
    if info.tensors:
        totals = totals_by(info.tensors, lambda tensor: tensor.dtype or "unknown")
        parts = (f"{dtype} ({count}, {size_text(size)})" for dtype, count, size in totals)
        rows.append(("dtypes", ", ".join(parts)))
    if alignment := alignment_of(info.tensors):
        rows.append(("alignment", size_text(alignment)))
    hashes = ", ".join(info.hashes) or "none"
    if info.digest_chunk:
        hashes += f" (chunks of {size_text(info.digest_chunk)})"
    rows += [("encryption", _encryption(info)), ("hashes", hashes)]
    metadata = info.metadata
    if delta := delta_of(info):
        rows += _rows_of(delta)
        shown = {_DELTA, *(f"{_DELTA}.{key}" for key in _DELTA_KEYS)}
        metadata = {key: value for key, value in metadata.items() if key not in shown}
    rows += (("metadata", safe(f"{key} = {shortened(value)}")) for key, value in metadata.items())
    return Table((), rows)


def _rows_of(delta: Delta) -> Iterator[tuple[str, str]]:
    yield "base", safe(shortened(delta.base))
    yield "target", safe(shortened(delta.target))
    for name, tensors in (("changes", delta.changes), ("whole", delta.whole)):
        yield name, f"{tensors_in_words(len(tensors))}, {size_text(stored_size(tensors))}"
    if delta.target_size:
        share = 100 * stored_size([*delta.changes, *delta.whole]) / delta.target_size
        yield "share", f"{share:.2f} % of the target's {size_text(delta.target_size)}"


def _in_words(info: Info) -> str:
    form = f"{info.format} format {info.version}" if info.version else info.format
    return f"{form}, {tensors_in_words(info.num_tensors)}, {size_text(info.num_bytes)}"


def _tensors(info: Info, most: int | None) -> Table:
    shown = info.tensors[:most]
    rows = ((t.name, t.dtype, t.shape, t.memory_size) for t in shown)
    return table_of_tensors(rows, len(info.tensors) - len(shown))


def _encryption(info: Info) -> str:
    if not info.encrypted:
        return "none"
    key = "random"
    if info.key_cost:
        passes, memory = info.key_cost
        key = f"from a passphrase ({passes} passes over {size_text(memory)})"
    covers = "data, names and shapes" if info.authenticated else "data alone"
    return f"XSalsa20-Poly1305; the key is {key}; authenticates {covers}"


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


def totals_by(
    tensors: Sequence[StoredTensor], key: Callable[[StoredTensor], str]
) -> list[tuple[str, int, int]]:
    """Return for each key how many tensors have it, and their bytes; most bytes first."""
    groups: dict[str, list[StoredTensor]] = {}
    for tensor in tensors:
        groups.setdefault(key(tensor), []).append(tensor)
    totals = [(name, len(group), stored_size(group)) for name, group in groups.items()]
    return sorted(totals, key=lambda total: -total[2])


def table_by_prefix(tensors: Sequence[StoredTensor], depth: int, most: int | None) -> Table:
    """Return the totals of tensors that share the first parts of their names."""
    totals = totals_by(tensors, lambda tensor: ".".join(tensor.name.split(".")[:depth]))
    rows = [(name_text(name), str(count), size_text(size)) for name, count, size in totals[:most]]
    return Table(("prefix", "tensors", "size"), rows, (1, 2), len(totals) - len(rows))
