"""Breaks chains of checkpoints, in saves, prunes and loads, and checks which step is loaded then.

Runs in a process with disk.c.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._dynamo  # which the forks would import
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh

import tensorizer_ops
from support.process import fork
from tensorizer_ops.checkpoint import Chain

FAILED = 3  # the status of a process whose job has raised what a fault must come to
FAULTS = (errno.EIO, errno.ENOSPC, errno.EINTR, 0)  # 0: a short write, or a kill
MOST_CALLS = 60  # that a save makes, and a prune
NUMBERS = 8 * 30


def state_of(step: int, ranks: int) -> dict[str, Any]:
    """Return a state whose every value says the step; with shards if ranks call this."""
    tensors: dict[str, Any] = {
        f"t{i}": torch.full((NUMBERS,), float(step), dtype=dtype)
        for i, dtype in enumerate((torch.float32, torch.bfloat16, torch.int64))
    }
    if ranks:
        mesh = init_device_mesh("cpu", (ranks,))
        tensors = {name: distribute_tensor(t, mesh, [Shard(0)]) for name, t in tensors.items()}
    return {"model": tensors, "step": step, "rates": {"lr": step / 7}}


def step_of(state: dict[str, Any]) -> int:
    """Return the step that all values of a state say."""
    step: int = state["step"]
    assert state["rates"] == {"lr": step / 7}
    assert sorted(state["model"]) == ["t0", "t1", "t2"]
    for tensor in state["model"].values():
        own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        assert own.numel() >= NUMBERS // 8
        assert (own == step).all()
    return step


class Job(NamedTuple):
    """What processes do with a chain: one alone for no ranks."""

    run: Callable[[Chain, int], object]
    ranks: int

    def start(self, root: Path, keep: int | None, broken: tuple[int, int, int] | None) -> list[int]:
        """Run it, and return the statuses of the processes.

        Of ``broken``, a rank's call of that number fails with that error.
        """
        store = root.parent / "store"
        store.unlink(missing_ok=True)

        def process(rank: int) -> None:
            if self.ranks:
                shared = dist.FileStore(str(store), self.ranks)
                dist.init_process_group("gloo", store=shared, rank=rank, world_size=self.ranks)
            if broken is not None and broken[0] == rank:
                os.environ |= {"DISK_ROOT": str(root), "DISK_FAIL": f"{broken[1]}:{broken[2]}"}
            try:
                self.run(Chain(root, keep=keep, grace=0, threads=1), self.ranks)
            except (OSError, tensorizer_ops.errors.Error, dist.checkpoint.CheckpointException):
                os._exit(FAILED)

        processes = [fork(partial(process, rank)) for rank in range(max(self.ranks, 1))]
        statuses: dict[int, int] = {}
        while len(statuses) < len(processes):
            pid, status = os.wait()
            statuses[pid] = os.waitstatus_to_exitcode(status)
            if statuses[pid] < 0:  # what started the ranks ends the others
                for other in set(processes) - set(statuses):
                    os.kill(other, signal.SIGKILL)
        ended = set(statuses.values())
        # If a rank is killed, the others cannot reach it.
        assert -signal.SIGKILL in ended or ended <= {0, FAILED}, statuses
        return list(statuses.values())


def saved(step: int) -> Callable[[Chain, int], None]:
    return lambda chain, ranks: chain.save(step, state_of(step, ranks))


def pruned(keep: int) -> Callable[[Chain, int], object]:
    return lambda chain, _: chain.prune(keep)


def loaded(report: Path) -> Callable[[Chain, int], None]:
    """Return a job that loads into a state, and says which steps it has loaded and passed over."""

    def run(chain: Chain, ranks: int) -> None:
        state = state_of(0, ranks)
        found = chain.load(state)
        assert found.step == step_of(state)
        over = [each.step for each in found.passed_over]
        name = f"{report}{dist.get_rank() if ranks else 0}"
        Path(name).write_text(json.dumps([found.step, *over]))

    return run


Files = dict[str, bytes]


def files_of(root: Path, step: int) -> Files:
    """Return the files of a step, but for what says that it is read."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob(f"step-{step}-*")
        for path in ([path] if path.is_file() else path.iterdir())
        if "-read" not in path.name
    }


def damage(path: Path, dice: random.Random) -> None:
    data = path.read_bytes()
    at = dice.randrange(len(data))
    kind = dice.choice(["flip", "cut", "lost", "empty", "zeros", "another"])
    if kind == "lost":
        path.unlink()
        return
    flipped = bytes([data[at] ^ 1 << dice.randrange(8)])
    damaged = {
        "flip": data[:at] + flipped + data[at + 1 :],
        "cut": data[:at],
        "empty": b"",
        "zeros": data[:at] + bytes(len(data) - at),
        "another": dice.randbytes(len(data)),
    }
    path.write_bytes(damaged[kind])


class Trial:
    """A chain of some steps, which is broken once."""

    def __init__(self, work: Path, ranks: int, dice: random.Random) -> None:
        self.dice, self.ranks, self.work = dice, ranks, work
        self.root = work / "run"
        self.last = dice.randint(2, 4)
        whole = work / f"whole {ranks} {self.last}"
        if not whole.exists():
            for step in range(1, self.last + 1):
                assert set(Job(saved(step), ranks).start(whole, None, None)) == {0}
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(whole, self.root)
        self.files = {step: files_of(self.root, step) for step in range(1, self.last + 1)}

    def damage_steps(self) -> None:
        """Damage some files of some steps, but not of all, and perhaps one list."""
        count = self.dice.randint(0, self.last - 1)
        for step in self.dice.sample(range(1, self.last + 1), count):
            damage(self.root / self.dice.choice(sorted(self.files[step])), self.dice)
        if self.dice.random() < 0.3:
            damage(self.root / self.dice.choice(["chain.tensors", "chain-copy.tensors"]), self.dice)

    def newest(self) -> int:
        """Return the newest step that is as it was saved."""
        return max(step for step, files in self.files.items() if files == files_of(self.root, step))

    def break_call(self, job: Job, keep: int | None) -> bool:
        """Run a job of which a call fails, and return whether all processes have succeeded."""
        broken = (
            self.dice.randrange(max(job.ranks, 1)),
            self.dice.randint(1, MOST_CALLS),
            self.dice.choice(FAULTS),
        )
        return set(job.start(self.root, keep, broken)) == {0}

    def load(self, ranks: int) -> int:
        """Load as so many ranks do, and return the step that all of them have loaded."""
        report = self.work / "report"
        for old in self.work.glob("report*"):
            old.unlink()
        statuses = Job(loaded(report), ranks).start(self.root, None, None)
        assert set(statuses) == {0}, statuses
        found = [json.loads(path.read_text()) for path in self.work.glob("report*")]
        assert len(found) == max(ranks, 1)
        assert all(each == found[0] for each in found), found
        step, *passed_over = found[0]
        assert passed_over == sorted(passed_over, reverse=True)
        assert min(passed_over, default=step + 1) == step + 1
        return int(step)

    def check_names(self) -> None:
        """Check that the list names all that is there."""
        chain = Chain(self.root)
        listing = chain._store.listing()
        known = {e.name for e in (*listing.saved, *listing.unfinished, *listing.removed)}
        names = [path.name.removesuffix(".tensors") for path in self.root.glob("step-*")]
        there = {name.removesuffix("-read") for name in names}
        assert there <= known, there - known


def break_save(trial: Trial) -> None:
    keep = trial.dice.choice([None, 1, 2])
    new = trial.last + 1
    is_saved = trial.break_call(Job(saved(new), trial.ranks), keep)
    step = trial.load(0)
    assert step == new or (not is_saved and step == trial.last), (step, new, is_saved)
    trial.check_names()
    after = Job(saved(new + 1), trial.ranks).start(trial.root, keep, None)
    assert set(after) == {0}
    assert trial.load(0) == new + 1
    trial.check_names()


def break_prune(trial: Trial) -> None:
    trial.damage_steps()
    newest, keep = trial.newest(), trial.dice.choice([1, 2])
    is_pruned = trial.break_call(Job(pruned(keep), 0), None)
    step = trial.load(0)
    assert step >= newest, (step, newest)
    trial.check_names()
    if is_pruned:
        left = Chain(trial.root).steps()
        assert sum(each.is_verified for each in left) <= keep


def break_load(trial: Trial) -> None:
    trial.damage_steps()
    newest = trial.newest()
    step = trial.load(trial.ranks)
    assert step >= newest, (step, newest)


def trials(work: Path, wanted: str) -> int:
    """Make so many trials of each kind, with one process and with 4 ranks: "200", or "200:17" for
    only the one of that number.
    """
    count, _, only = wanted.partition(":")
    made = 0
    for ranks in (0, 4):
        for name, trial in (("save", break_save), ("prune", break_prune), ("load", break_load)):
            for number in [int(only)] if only else range(int(count)):
                try:
                    trial(Trial(work, ranks, random.Random(f"{name} {ranks} {number}")))
                except BaseException as error:
                    who = f"{name} of {ranks or 'no'} ranks"
                    error.add_note(f"{who}: CHAIN_TRIALS=1:{number} repeats it")
                    raise
                made += 1
    return made
