"""Tensors of a file, with which tensors in memory are compared."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch.nn.parameter import is_lazy

from tensorizer_ops._base.arguments import kind_of
from tensorizer_ops._base.boxes import strides_of
from tensorizer_ops._base.memory import as_bytes
from tensorizer_ops._base.savable import held
from tensorizer_ops._front.reader import Reader
from tensorizer_ops._front.weight import Index, Stored, as_slices

# How many elements of a tensor are named.
_MOST_NAMED = 10
# Bytes of tensors that are compared at a time, so that copies of them stay in the CPU's cache.
_BLOCK = 1 << 20
# How many tensors are loaded and compared at the same time.
_AT_A_TIME = 3
# Tensors on other devices come to the host, because not all of these can compare.
_COMPARING = ("cpu", "cuda")


@dataclass
class Attestation:
    """What :func:`attest` has found. The names are those of tensors in memory, but for missing."""

    compared: list[str]  # equal to what the file has
    different: dict[str, str]  # where, by name
    not_compared: dict[str, str]  # why, by name
    missing: list[str]  # only the file has these, which does not count; empty with load_weights=

    @property
    def equal(self) -> bool:
        """Whether there are tensors, all were compared, and none differs."""
        return bool(self.compared) and not self.different and not self.not_compared


def usable(tensors: Mapping[str, torch.Tensor], found: Attestation) -> dict[str, torch.Tensor]:
    """Return the tensors, without other values of a ``state_dict()``."""
    kept = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            found.not_compared[name] = f"it is {kind_of(tensor)}, and no tensor"
        elif is_lazy(tensor):
            found.not_compared[name] = "it is not initialized until its module runs"
        else:
            kept[name] = tensor
    return kept


def why_coarse(own: torch.dtype, stored: Iterable[torch.dtype]) -> str | None:
    """Return why a tensor that equals others, cast to its type, may be far from them."""
    other = next((dtype for dtype in stored if dtype != own and _loses(own, dtype)), None)
    if other is None:
        return None
    return f"its type {own} loses most of what {other} in the file tells"


def _loses(own: torch.dtype, other: torch.dtype) -> bool:
    """Return whether a cast may lose more than the last digits of a number."""
    if own.is_floating_point and other.is_floating_point:
        return own.itemsize == 1
    if own.is_floating_point:
        return other.is_complex or own.itemsize <= other.itemsize
    size = own.itemsize // 2 if own.is_complex and not other.is_complex else own.itemsize
    return size < other.itemsize or not torch.can_cast(other, own)


@dataclass
class Difference:
    """The elements of a tensor that differ from those of another one."""

    places: list[int]  # of the first ones, in row-major order
    count: int

    def add(self, places: list[int], count: int) -> None:
        """Add elements, of which the first ones have these places."""
        self.places += places[: _MOST_NAMED - len(self.places)]
        self.count += count

    @classmethod
    def at(cls, differs: torch.Tensor) -> Difference | None:
        """Return the elements that have ``True`` in a mask."""
        places = differs.flatten().nonzero().flatten()
        return cls(places[:_MOST_NAMED].tolist(), len(places)) if len(places) else None

    def text(self, shape: Sequence[int], other: str) -> str:
        """Return what to say of a tensor of this shape."""
        shown = ", ".join(str(index_of(place, shape)) for place in self.places[:_MOST_NAMED])
        if self.count == 1:
            return f"element {shown} is not that of {other}"
        more = f" and {self.count - _MOST_NAMED} more" * (self.count > _MOST_NAMED)
        return f"elements {shown}{more} are not those of {other}"


def index_of(place: int, shape: Sequence[int]) -> list[int]:
    """Return the index of an element of a contiguous tensor."""
    sizes = zip(strides_of(shape), shape, strict=True)
    return [place // stride % size for stride, size in sizes]


def difference(expected: torch.Tensor, own: torch.Tensor) -> Difference | None:
    """Compare a tensor bit by bit with another one of its shape, cast to its type."""
    whole = Difference([], 0)
    for begin, differs in _blocks_that_differ(expected, own):
        found = differs.nonzero().flatten()
        whole.add((found[:_MOST_NAMED] + begin).tolist(), len(found))
    return whole if whole.count else None


def differing(expected: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Return a mask of the elements that :func:`difference` finds."""
    mask = torch.zeros(own.numel(), dtype=torch.bool, device="cpu")
    for begin, differs in _blocks_that_differ(expected, own):
        mask[begin : begin + len(differs)] = differs
    return mask.view(own.shape)


def _blocks_that_differ(
    expected: torch.Tensor, own: torch.Tensor
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield where a block begins, in elements, and which of its elements differ."""
    device = own.device if own.device.type in _COMPARING else torch.device("cpu")
    if expected.is_contiguous() and own.is_contiguous():
        expected, own = expected.view(-1), own.view(-1)
    row = math.prod(own.shape[1:])
    rows = max(_BLOCK // max(row * own.itemsize, 1), 1)
    for begin in range(0, len(own), rows):
        one, other = (
            as_bytes(tensor[begin : begin + rows].to(own.dtype)).to(device)
            for tensor in (expected, own)
        )
        if not _are_equal(one, other):
            yield begin * row, (one != other).view(-1, own.itemsize).any(1)


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.storage_offset() % 8 or other.storage_offset() % 8:
        return torch.equal(one, other)
    words = one.numel() // 8 * 8  # which are compared in a quarter of the time of bytes
    pairs = (one[:words].view(torch.int64), other[:words].view(torch.int64))
    return torch.equal(*pairs) and torch.equal(one[words:], other[words:])


class Compared(Stored):
    """A tensor of a file, with which tensors in memory are compared."""

    def __init__(self, reader: Reader, name: str) -> None:
        super().__init__(reader, name)
        self.shape = tuple(reader.shape(name))
        self._internals = torch.classes.tensorizer._Internals(reader.script_object)

    @property
    def is_open(self) -> bool:
        """Return whether the file is still open, as it is until it has been compared."""
        return not self._reader._is_closed

    @functools.cached_property
    def _has_parts(self) -> bool:
        """Return whether parts can be verified, which a hash of the whole cannot do."""
        return bool(self._internals.signed_as() or self._internals.chunk_digests(self.name)[0])

    def load(self, index: Index, device: torch.device | str) -> torch.Tensor:
        """Load a part, verified."""
        if self._has_parts:
            return super().load(index, device)
        return super().load(self.everything, device)[as_slices(index)]

    def difference(
        self, index: Index, tensor: torch.Tensor, expected: torch.Tensor | None = None
    ) -> Difference | None:
        """Compare a tensor with a part of this one, cast to its type, if that is not given."""
        with held([self.name], [tensor], "compared") as (own,), torch.no_grad():
            own = own.detach().resolve_conj().resolve_neg()
            has_part = self._has_parts or index == self.everything
            begin = self._begin_of_rows(index) if has_part else None
            if expected is None and begin is not None and own.dtype == self.dtype:
                return self._difference_of_rows(begin, as_bytes(own).view(own.dtype))
            if expected is None:
                expected = self.load(index, own.device)
            return difference(expected, own)

    def _begin_of_rows(self, index: Index) -> int | None:
        """Return where a part begins, in elements, if it is one range of the data."""
        if index[1:] != self.everything[1:]:
            return None
        first = index[0] if index else 0
        if isinstance(first, range):
            if first.step != 1:
                return None
            first = first.start
        return first * self.strides[0] if index else 0

    def _difference_of_rows(self, begin: int, own: torch.Tensor) -> Difference | None:
        """Compare chunks by their digests, and other elements one by one."""
        ranges = self._without_digest(begin, own)
        starts = [start for start, _ in ranges]
        loaded = [
            torch.empty(stop - start, dtype=self.dtype, device=own.device) for start, stop in ranges
        ]
        names = [self.name] * len(ranges)
        self._internals.load_ranges(names, starts, loaded, None, "all", 0)
        whole = Difference([], 0)
        for (start, stop), expected in zip(ranges, loaded, strict=True):
            if found := difference(expected, own[start - begin : stop - begin]):
                whole.add([place + start - begin for place in found.places], found.count)
        return whole if whole.count else None

    def _without_digest(self, begin: int, own: torch.Tensor) -> list[tuple[int, int]]:
        """Return the ranges of elements that are in no chunk whose digest is that of the file."""
        end = begin + own.numel()
        size, digests = self._internals.chunk_digests(self.name)
        if size == 0 or own.numel() == 0:
            return [(begin, end)]
        chunk = size // own.itemsize
        first = -(-begin // chunk)
        last = len(digests) if end == math.prod(self.shape) else end // chunk
        if first >= last:
            return [(begin, end)]
        since, until = first * chunk, min(last * chunk, end)
        found = torch.ops.tensorizer.sha256_chunks(own[since - begin : until - begin], size)
        wrong = (found.cpu() != digests[first:last]).any(1).nonzero().flatten() + first
        ranges = [(begin, since), *((i * chunk, (i + 1) * chunk) for i in wrong.tolist())]
        return [(start, min(stop, end)) for start, stop in (*ranges, (until, end)) if start < stop]


class Comparing:
    """Compares tensors on other threads, until its block ends."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_AT_A_TIME)

    def __enter__(self) -> Comparing:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def difference(
        self, stored: Compared, index: Index, tensor: torch.Tensor
    ) -> Callable[[], Difference | None]:
        """Begin to compare, and return what waits for :meth:`Compared.difference` of these."""
        expected = stored.loaded(index)
        # The caller has what was loaded, and may change it before another thread compares it.
        if expected is None and tensor.device.type == "cpu":
            return self._pool.submit(stored.difference, index, tensor).result
        found = stored.difference(index, tensor, expected)
        return lambda: found

    def crc32s(self, tensors: Iterable[torch.Tensor]) -> Iterator[int]:
        """Return the CRC32 of the bytes of each tensor."""
        return self._pool.map(torch.ops.tensorizer.crc32, tensors)
