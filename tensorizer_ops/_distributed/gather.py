"""Loads a share of a model on each rank, and sends it to the others while reading goes on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from tensorizer_ops._base.job import Job
from tensorizer_ops._base.memory import as_bytes
from tensorizer_ops._distributed.peers import Peers
from tensorizer_ops._distributed.shares import Extent, Range, divide, pieces

# Bytes: of a piece, if the memory ceiling allows it; of a usual request to a server, of which a
# piece consists; and of a range that is sent by itself, without a copy.
_PIECE, _REQUEST, _ALONE = 32 << 20, 8 << 20, 1 << 20
# Pieces that may be under way at a time.
_WINDOW = 3


class Shared(NamedTuple):
    """Tensors that several ranks load together, each of its own name."""

    names: list[str]
    extents: list[Extent]
    outputs: list[torch.Tensor]  # contiguous; the same on every rank

    def elements_of(self, one: Range) -> torch.Tensor:
        """Return the elements of a range, in one dimension."""
        flat = self.outputs[one.tensor].view(-1)
        return flat.narrow(0, one.start, one.length)


def load_ranges(
    reader: Any,
    shared: Shared,
    ranges: Sequence[Range],
    verify: str,
    threads: int,
    arrived: torch.Tensor | None = None,
) -> None:
    """Load ranges of tensors into their outputs. A byte of each in ``arrived`` becomes 1 then."""
    names = [shared.names[one.tensor] for one in ranges]
    starts = [one.start for one in ranges]
    outputs = [shared.elements_of(one) for one in ranges]
    internals = torch.classes.tensorizer._Internals(reader)
    internals.load_ranges(names, starts, outputs, arrived, verify, threads)


def need_only(reader: Any, shared: Shared, share: Sequence[Range]) -> None:
    """Say that this rank reads its share only, so that nothing behind it is read ahead."""
    if share:
        end = share[-1]
        internals = torch.classes.tensorizer._Internals(reader)
        internals.need_until(shared.names[end.tensor], end.start + end.length)


class _Loader:
    """Loads all pieces of this rank in a thread of its own, and knows which have arrived."""

    def __init__(
        self, reader: Any, shared: Shared, mine: list[list[Range]], verify: str, threads: int
    ) -> None:
        self._reader = reader
        self._shared = shared
        self._how = (verify, threads)
        self._ranges = [one for piece in mine for one in piece]
        self._ends = list(accumulate(map(len, mine), initial=0))  # of the ranges of each piece
        self._arrived = torch.zeros(len(self._ranges), dtype=torch.uint8, device="cpu")
        # All at once, so that connections never wait for each other. But whole tensors that are
        # hashed arrive in another order than they are sent.
        in_order = torch.classes.tensorizer._Internals(reader).chunk_size(verify) > 0
        self._calls = [0, self._ends[-1]] if in_order else self._ends
        self._stopped = threading.Event()
        self._job = Job(self._run)

    def _run(self) -> None:
        for begin, end in pairwise(self._calls):
            if self._stopped.is_set() or begin == end:
                return
            ranges, arrived = self._ranges[begin:end], self._arrived[begin:end]
            load_ranges(self._reader, self._shared, ranges, *self._how, arrived)

    def has(self, number: int) -> bool:
        """Return whether a piece is loaded, or never will be."""
        begin, end = self._ends[number : number + 2]
        # The last piece waits for what is checked in the end: that the file is still the same.
        is_last = end == len(self._ranges)
        return self._job.is_done() or (not is_last and bool(self._arrived[begin:end].all()))

    @property
    def error(self) -> BaseException | None:
        return self._job.error

    def stop(self) -> None:
        self._stopped.set()
        if not self._job.is_done():
            self._reader.cancel()
        self._job.join()


class _Sending(NamedTuple):
    """A piece on its way to this rank, or from it."""

    small: list[torch.Tensor]  # views of bytes that travel in `packed`
    packed: torch.Tensor  # the first byte is 1 if the piece could not be loaded
    works: list[dist.Work]
    rank: int  # that sends it


def gather(
    reader: Any, shared: Shared, peers: Peers, verify: str, threads: int, ceiling: int
) -> None:
    """Fill the outputs on every rank: each reads its share of the file, and sends it to the others.

    The pieces of all ranks travel in the same order everywhere, and the ranks that receive a piece
    learn with it whether it was loaded. So all of them stop at the same piece, and the group can
    still be used.
    """
    most = max(min(_PIECE, ceiling // (_WINDOW + 1)), 64 << 10)
    most = most - most % _REQUEST or most
    shares = divide(shared.extents, peers.size)
    need_only(reader, shared, shares[peers.rank])
    cut = [pieces(share, shared.extents, most) for share in shares]
    loader = _Loader(reader, shared, cut[peers.rank], verify, threads)
    under_way: deque[_Sending] = deque()
    try:
        for number in range(max(map(len, cut))):
            for rank, its in enumerate(cut):
                if number >= len(its):
                    continue
                if len(under_way) == _WINDOW:
                    _receive(peers, under_way, loader)
                under_way.append(_send(peers, shared, its[number], rank, number, loader))
        while under_way:
            _receive(peers, under_way, loader)
    finally:
        loader.stop()


def _send(
    peers: Peers, shared: Shared, piece: list[Range], rank: int, number: int, loader: _Loader
) -> _Sending:
    views = [as_bytes(shared.elements_of(one)) for one in piece]
    small = [view for view in views if view.numel() < _ALONE]
    device = views[0].device
    if rank == peers.rank:
        peers.wait(lambda: loader.has(number))
        failure = loader.error
        if failure is not None:
            peers.explain(failure)
        state = torch.tensor([failure is not None], dtype=torch.uint8, device=device)
        packed = torch.cat([state, *small])
    else:
        size = 1 + sum(view.numel() for view in small)
        packed = torch.empty(size, dtype=torch.uint8, device=device)
    alone = [view for view in views if view.numel() >= _ALONE]
    works = [peers.broadcast(tensor, rank) for tensor in (packed, *alone)]
    return _Sending(small, packed, works, rank)


def _receive(peers: Peers, under_way: deque[_Sending], loader: _Loader) -> None:
    """Block until the first piece has arrived, and put its small ranges into their places."""
    sending = under_way.popleft()
    mine = sending.rank == peers.rank
    for work in sending.works:
        peers.finish(work)
    if sending.packed[0].item():
        # All ranks have started the same broadcasts, and end them.
        for other in under_way:
            for work in other.works:
                peers.finish(work)
        raise peers.explained(sending.rank, loader.error if mine else None)
    if not mine and sending.small:
        sizes = [view.numel() for view in sending.small]
        torch._foreach_copy_(sending.small, list(sending.packed[1:].split(sizes)))


def synchronize(device: torch.device) -> None:
    """Block until what this thread has started on a device is done."""
    if device.type != "cpu":
        torch.accelerator.current_stream(device).synchronize()
