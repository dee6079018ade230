"""Chains of checkpoints in a store that goes away while the ranks of a group save and load."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch.distributed as dist

from support.chain_faults import state_of, step_of
from support.relay import Relay, away_after, reached_through, relay
from tensorizer_ops.checkpoint import Chain

# How a job ends: with a step, or with "error".
Outcome = int | str


class Ranks:
    """The ranks of a group. The first one has the relay to the store."""

    def __init__(self, server: Relay | None, uri: str, options: dict[str, str]) -> None:
        ports = [server.port if server else 0]
        dist.broadcast_object_list(ports)
        self.server, self.size = server, dist.get_world_size()
        uri, options = reached_through(ports[0], uri, options)
        self.chain = Chain(uri, options=options, grace=0)

    def save(self, step: int) -> int:
        self.chain.save(step, state_of(step, self.size))
        return step

    def save_undisturbed(self, step: int) -> int:
        try:
            return self.save(step)
        except dist.checkpoint.CheckpointException:
            # rclone may answer with 500, again and again, if several ranks make a folder at once.
            return self.save(step)

    def load(self) -> int:
        state = state_of(0, self.size)
        found = self.chain.load(state)
        assert found.step == step_of(state)
        assert not found.passed_over
        return found.step

    def bytes_of(self, job: Callable[[], object]) -> int:
        """Return how many bytes pass, on the rank that has the relay."""
        before = self.server.passed if self.server else 0
        dist.barrier()
        job()
        dist.barrier()
        return self.server.passed - before if self.server else 1

    def fail(self, passed: int, job: Callable[[], int]) -> Outcome:
        """Run a job during which the store goes away, and return how it has ended on every rank."""
        outcome: Outcome
        with away_after(self.server, passed) if self.server else nullcontext():
            dist.barrier()
            try:
                outcome = job()
            except (ConnectionError, dist.checkpoint.CheckpointException):
                outcome = "error"
            dist.barrier()
        outcomes: list[Any] = [None] * self.size
        dist.all_gather_object(outcomes, outcome)
        assert outcomes == [outcome] * self.size, outcomes
        return outcome


def trials(port: int, uri: str, options: dict[str, str], count: int) -> list[Outcome]:
    """Let the store go away in so many loads, and in as many saves, on each rank of a group."""
    dice = random.Random(uri)
    with relay(port) if dist.get_rank() == 0 else nullcontext() as server:
        ranks = Ranks(server, uri, options)
        ranks.save_undisturbed(1)
        size_of_save = ranks.bytes_of(lambda: ranks.save_undisturbed(2))
        size_of_load = ranks.bytes_of(ranks.load)
        loads = [ranks.fail(dice.randrange(size_of_load), ranks.load) for _ in range(count)]
        assert set(loads) <= {2, "error"}, loads
        newest = 2
        saves = []
        for step in range(3, 3 + count):
            saves.append(
                ranks.fail(dice.randrange(size_of_save), lambda step=step: ranks.save(step))
            )
            found = ranks.load()
            assert found == step or (saves[-1] == "error" and found == newest), (found, saves)
            newest = found
    return loads + saves
