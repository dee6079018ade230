"""Brings the bytes of each section of a file to the rank that writes it.

All ranks know who has what, so they compute what travels, and nothing has to be asked for. In each
round, every rank receives one of its sections, while it writes the one before. The digests of a
section travel to all ranks two rounds later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from tensorizer_ops._base.job import Job
from tensorizer_ops._distributed.boxes import Box, LocalBytes, Saved
from tensorizer_ops._distributed.gather import synchronize
from tensorizer_ops._distributed.peers import Peers

# Rounds until the digests of a section travel: it is written while the next one arrives.
_LAG = 2


class Travel(NamedTuple):
    """A box of a tensor that goes to its place in a section."""

    tensor: int
    box: Box
    ranks: list[int]  # that have it
    place: int  # of its first byte among the data of the section


def travels(ranges: Sequence[tuple[int, int, int]], tensors: Sequence[Saved]) -> Iterator[Travel]:
    """Yield what the data of a section consists of."""
    begin = 0
    for number, start, size in ranges:
        tensor = tensors[number]
        for box in tensor.boxes(start, start + size):
            for holder in tensor.holders:
                if common := box.common(holder.box):
                    place = begin + tensor.position(common.starts) - start
                    yield Travel(number, common, holder.ranks, place)
        begin += size


def _ranges(shared: Any, section: int) -> list[tuple[int, int, int]]:
    """Return the tensor, the start and the size of each range of a section."""
    numbers = iter(shared.ranges(section))
    return list(zip(numbers, numbers, numbers, strict=True))


def assigned(shared: Any, tensors: Sequence[Saved], ranks: int) -> list[list[int]]:
    """Return the sections that each rank writes: those of which it has much, in about equal shares.

    Sections of the head are those of rank 0.
    """
    sections: list[list[int]] = [[] for _ in range(ranks)]
    heads = shared.head_sections()
    for section in range(shared.section_count()):
        owner = 0
        if section >= heads:
            held = [0] * ranks
            for travel in travels(_ranges(shared, section), tensors):
                for rank in travel.ranks:
                    held[rank] += travel.box.size
            most = max(held)
            fit = [rank for rank in range(ranks) if 2 * held[rank] >= most]
            owner = min(fit, key=lambda rank: len(sections[rank]))
        sections[owner].append(section)
    return sections


class Exchange:
    """The rounds of one save. Used by one thread."""

    def __init__(
        self,
        peers: Peers,
        shared: Any,
        tensors: Sequence[Saved],
        local: dict[int, LocalBytes],
        sections: Sequence[Sequence[int]],
    ) -> None:
        self._peers = peers
        self._shared = shared
        self._tensors = tensors
        self._local = local
        self._sections = sections
        # The first job says which sections are this rank's, and each later one writes a section.
        self._job: Job[torch.Tensor | None] | None = Job(self._begin)
        self._digests: dict[int, torch.Tensor] = {}  # by round, of own sections
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Write all sections of this rank, and learn the digests of all of them."""
        try:
            for number in range(max(map(len, self._sections)) + _LAG):
                self._round(number)
            self._finish_job(-1)
            if self._failure is not None:
                raise self._failure
        except BaseException:
            self._shared.cancel()
            if self._job is not None:
                self._job.join()
            raise

    def _begin(self) -> None:
        self._shared.own(list(self._sections[self._peers.rank]))

    def _section(self, rank: int, number: int) -> int | None:
        """Return the section of a rank in a round."""
        own = self._sections[rank]
        return own[number] if 0 <= number < len(own) else None

    def _digest_size(self, sender: int, receiver: int, number: int) -> int:
        section = self._section(sender, number)
        if section is None:
            return 0
        sizes: tuple[int, int] = self._shared.digest_sizes(section)
        common, first_only = sizes
        return common + (first_only if receiver == 0 else 0)

    def _round(self, number: int) -> None:
        peers = self._peers
        mine = peers.rank
        # The first byte that a rank sends is 1 if it has failed.
        state = torch.tensor([self._failure is not None], dtype=torch.uint8)
        outgoing: list[list[torch.Tensor]] = [[state] for _ in range(peers.size)]
        incoming: list[list[Travel]] = [[] for _ in range(peers.size)]
        ranges: list[tuple[int, int, int]] = []
        for owner in range(peers.size):
            section = self._section(owner, number)
            if section is None:
                continue
            needed = _ranges(self._shared, section)
            if owner == mine:
                ranges = needed
            for travel in travels(needed, self._tensors):
                ranks = travel.ranks
                sender = owner if owner in ranks else ranks[section % len(ranks)]
                if owner == mine:
                    incoming[sender].append(travel)
                elif sender == mine:
                    outgoing[owner].append(self._own(travel).reshape(-1))
        digests = self._digests.pop(number - _LAG, None)
        for receiver in range(peers.size):
            size = self._digest_size(mine, receiver, number - _LAG)
            if size and receiver != mine:
                # After a failure there are none.
                sent = torch.zeros(size, dtype=torch.uint8) if digests is None else digests[:size]
                outgoing[receiver].append(sent)
        arrived = self._exchange(number, outgoing, incoming)
        self._finish_job(number - 1)
        failed = [rank for rank, data in enumerate(arrived) if data[0]]
        if failed:
            raise peers.explained(failed[0], self._failure if failed[0] == mine else None)
        data = self._assembled(sum(size for _, _, size in ranges), incoming, arrived)
        section = self._section(mine, number)
        known = self._known(number - _LAG, arrived, digests)
        self._job = Job(lambda: self._written(section, data, known))

    def _exchange(
        self,
        number: int,
        outgoing: Sequence[Sequence[torch.Tensor]],
        incoming: Sequence[Sequence[Travel]],
    ) -> list[torch.Tensor]:
        """Return what every rank has sent to this one."""
        peers = self._peers
        mine = peers.rank
        sizes = []
        for rank, expected in enumerate(incoming):
            size = 1
            if rank != mine:
                size += sum(travel.box.size for travel in expected)
                size += self._digest_size(rank, mine, number - _LAG)
            sizes.append(size)
        sent = [sum(piece.numel() for piece in pieces) for pieces in outgoing]
        out = torch.empty(sum(sent), dtype=torch.uint8, device=peers.device)
        at = 0
        for pieces in outgoing:
            for piece in pieces:
                out[at : at + piece.numel()].copy_(piece)
                at += piece.numel()
        into = torch.empty(sum(sizes), dtype=torch.uint8, device=peers.device)
        synchronize(out.device)
        peers.finish(peers.exchange(into, out, sizes, sent))
        return list(into.cpu().split(sizes))

    def _own(self, travel: Travel) -> torch.Tensor:
        return self._local[travel.tensor].box(travel.box)

    def _assembled(
        self, size: int, incoming: Sequence[Sequence[Travel]], arrived: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Return the data of this rank's section."""
        mine = self._peers.rank
        own = incoming[mine]
        if len(own) == 1 and own[0].box.size == size:
            piece = self._own(own[0])
            if piece.is_contiguous() and piece.device.type == "cpu":
                return piece.reshape(-1)
        data = torch.empty(size, dtype=torch.uint8)
        for rank, expected in enumerate(incoming):
            at = 1
            for travel in expected:
                lengths = travel.box.lengths
                if rank == mine:
                    piece = self._own(travel)
                else:
                    piece = arrived[rank][at : at + travel.box.size].view(lengths)
                    at += travel.box.size
                strides = self._tensors[travel.tensor].strides
                data.as_strided(lengths, strides, travel.place).copy_(piece)
        return data

    def _known(
        self, number: int, arrived: Sequence[torch.Tensor], own: torch.Tensor | None
    ) -> list[tuple[int, torch.Tensor]]:
        """Return the sections of an earlier round, with their digests."""
        known = []
        for rank, data in enumerate(arrived):
            section = self._section(rank, number)
            if section is None:
                continue
            if rank == self._peers.rank:
                assert own is not None
                known.append((section, own))
            else:
                size = self._digest_size(rank, self._peers.rank, number)
                known.append((section, data[data.numel() - size :]))
        return known

    def _written(
        self, section: int | None, data: torch.Tensor, known: Sequence[tuple[int, torch.Tensor]]
    ) -> torch.Tensor | None:
        for other, digests in known:
            self._shared.take(other, digests)
        return None if section is None else self._shared.write(section, data)

    def _finish_job(self, number: int) -> None:
        """Wait for the job of a round, and keep its digests or its error."""
        job, self._job = self._job, None
        if job is None:
            return
        try:
            self._peers.wait(job.is_done)
        except BaseException:
            self._job = job
            raise
        if job.error is not None:
            self._peers.check()  # an upload that another rank has ended is not the cause
            self._failure = job.error
            self._peers.explain(job.error)
            return
        digests = job.result()
        if digests is not None:
            self._digests[number] = digests
