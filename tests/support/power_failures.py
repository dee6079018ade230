"""Lets the power fail during saves, in every way that the calls of disk.c allow, lets each of those
calls fail, and kills the save before each; and checks what is left.

Runs in a process with disk.c.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

import tensorizer_ops
from support.disk_states import Call, orders, read_tree, states, take_log, write_tree
from support.killed_saves import Found, found_by
from support.process import fork, wait
from tensorizer_ops.checkpoint import Chain

OLD, NEW = 1, 2
FILE = "checkpoint.tensors"  # which rank 0 writes when all have written theirs
SYNCED = {"fsync": "true"}
NEVER = 1 << 30
FAILED = 3  # the status of a process whose job has raised what the fault must come to
FAULTS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EINTR": errno.EINTR, "short or killed": 0}


class Case(NamedTuple):
    prepare: Callable[[Path], object]
    job: Callable[[Path], object]
    load: Callable[[Path], dict[str, torch.Tensor]]
    # Whether a load that verifies may fail after a power failure.
    may_be_damaged: bool = False
    # Whether the old model may be gone when the call has failed.
    in_place: bool = False
    # Whether calls fail in it as well: not where processes wait for one another.
    breaks: bool = True


def model(value: int) -> dict[str, torch.Tensor]:
    return {f"t{i}": torch.full((300,), value, dtype=torch.float32) for i in range(3)}


def save(value: int, name: str = "m.tensors", **options: str) -> Callable[[Path], None]:
    def run(root: Path) -> None:
        tensorizer_ops.save(root / name, model(value), threads=1, options=options)

    return run


def save_in_place(root: Path) -> None:
    with (root / "m.tensors").open("r+b") as file:
        tensorizer_ops.save(f"fd:{file.fileno()}", model(NEW), threads=1)


def load(name: str = "m.tensors") -> Callable[[Path], dict[str, torch.Tensor]]:
    return lambda root: tensorizer_ops.load(root / name, verify="all", copy=True)


def nothing(_: Path) -> None:
    pass


def prepare_update(root: Path) -> None:
    save(OLD)(root)
    save(NEW, "newer.tensors")(root)


def update(root: Path) -> None:
    tensorizer_ops.update(root / "newer.tensors", root / "m.tensors", threads=1)


def prepare_delta(root: Path) -> None:
    prepare_update(root)
    tensorizer_ops.delta(root / "m.tensors", root / "newer.tensors", root / "delta.tensors")


def apply(root: Path) -> None:
    base = root / "m.tensors"
    tensorizer_ops.apply(root / "delta.tensors", base, threads=1, target_options=SYNCED)


def save_checkpoint(value: int) -> Callable[[Path], None]:
    return lambda root: tensorizer_ops.checkpoint.save(root / "step", model(value), options=SYNCED)


def load_checkpoint(root: Path) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = tensorizer_ops.checkpoint.load(root / "step", verify="all")
    return loaded


def save_checkpoint_in_place(root: Path) -> None:
    with (root / "step").open("r+b") as file:
        tensorizer_ops.checkpoint.save(file, model(NEW), threads=1)


def save_step(value: int) -> Callable[[Path], None]:
    return lambda root: Chain(root / "run", keep=1, grace=0).save(value, model(value))


def load_step(root: Path) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = Chain(root / "run").load().state
    return loaded


def save_ranks(value: int) -> Callable[[Path], None]:
    """Return a job of two ranks, which have one half of each tensor."""

    def run(root: Path) -> None:
        store = root.parent / "store"
        store.unlink(missing_ok=True)

        def rank(number: int) -> None:
            dist.init_process_group(
                "gloo", store=dist.FileStore(str(store), 2), rank=number, world_size=2
            )
            mesh = init_device_mesh("cpu", (2,))
            state = {
                name: distribute_tensor(tensor, mesh, [Shard(0)])
                for name, tensor in model(value).items()
            }
            tensorizer_ops.checkpoint.save(root / "step", state, options=SYNCED)
            dist.destroy_process_group()

        ranks = [fork(partial(rank, number)) for number in range(2)]
        assert [wait(each) for each in ranks] == [0, 0]

    return run


def convert(root: Path) -> None:
    source, target = root / "newer.tensors", root / "m.tensors"
    tensorizer_ops.convert(source, target, threads=1, target_options=SYNCED)


def save_model(value: int) -> Callable[[Path], None]:
    def run(root: Path) -> None:
        from support.hf_models import llama

        module = llama()
        for tensor in module.state_dict().values():
            tensor.fill_(value)
        tensorizer_ops.hf.save_pretrained(module, root / "model", threads=1, options=SYNCED)

    return run


def load_model(root: Path) -> dict[str, torch.Tensor]:
    for file in ("config.json", "generation_config.json"):
        json.loads((root / "model" / file).read_text())
    return load("model")(root)


SHARDS = {"max_shard_size": "2500"}
SHARDED = "model.safetensors"
CASES = {
    "save, fsync": Case(save(OLD), save(NEW, **SYNCED), load()),
    "first save, fsync": Case(nothing, save(NEW, **SYNCED), load()),
    "save": Case(save(OLD), save(NEW), load(), may_be_damaged=True),
    "safetensors, fsync": Case(
        save(OLD, "m.safetensors"), save(NEW, "m.safetensors", **SYNCED), load("m.safetensors")
    ),
    "new folder, fsync": Case(nothing, save(NEW, "a/b/m.tensors", **SYNCED), load("a/b/m.tensors")),
    "in place": Case(save(OLD), save_in_place, load(), may_be_damaged=True, in_place=True),
    "shards, fsync": Case(
        save(OLD, SHARDED, **SHARDS), save(NEW, SHARDED, **SHARDS, **SYNCED), load(".")
    ),
    "shards": Case(save(OLD, SHARDED, **SHARDS), save(NEW, SHARDED, **SHARDS), load("."), True),
    "update": Case(prepare_update, update, load(), may_be_damaged=True),
    "convert, fsync": Case(prepare_update, convert, load()),
    "delta, fsync": Case(prepare_delta, apply, load()),
    "checkpoint, fsync": Case(save_checkpoint(OLD), save_checkpoint(NEW), load_checkpoint),
    "checkpoint of two ranks, fsync": Case(
        save_ranks(OLD), save_ranks(NEW), load_checkpoint, breaks=False
    ),
    "checkpoint in place": Case(
        save_checkpoint(OLD), save_checkpoint_in_place, load_checkpoint, True, in_place=True
    ),
    "chain of checkpoints": Case(save_step(OLD), save_step(NEW), load_step),
    "model of transformers, fsync": Case(save_model(OLD), save_model(NEW), load_model),
}


def found(case: Case, root: Path) -> Found:
    return found_by(lambda: case.load(root))


def check(case: Case, root: Path, allowed: set[Found]) -> None:
    try:
        left = found(case, root)
    except tensorizer_ops.errors.Error:
        assert case.may_be_damaged
    else:
        assert left in allowed or (left is None and case.may_be_damaged), left


def record(case: Case, root: Path) -> list[Call]:
    """Run the job, and return its calls."""
    log = root.parent / "log"
    os.environ |= {"DISK_ROOT": str(root), "DISK_LOG": str(log)}
    try:
        case.job(root)
    finally:
        del os.environ["DISK_ROOT"], os.environ["DISK_LOG"]
    return take_log(log)


def prepare(case: Case, root: Path) -> Found:
    """Prepare the folder, and return what is in it."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    case.prepare(root)
    return found(case, root)


def new_of(case: Case, root: Path) -> Found:
    """Return what the job leaves if nothing fails."""
    prepare(case, root)
    case.job(root)
    new = found(case, root)
    assert new is not None and new[0] == NEW
    return new


def fail(name: str, root: Path, most: int, sample: int, left_out: int = -1) -> int:
    """Let the power fail in one case. Returns how many states were checked.

    Args:
        most: how many states after a call are all tried.
        sample: how many of more are tried, at random.
        left_out: the number of a call that is taken for not made.
    """
    case = CASES[name]
    new = new_of(case, root)
    old = prepare(case, root)
    disk, kept = read_tree(root)
    calls = record(case, root)
    if left_out >= 0:
        del calls[left_out]
    checked = 0
    for in_order in orders(calls, FILE):
        for number, tree in states(deepcopy(disk), in_order, most, sample):
            write_tree(tree, root)
            ended = number == len(calls) and not case.may_be_damaged
            try:
                check(case, root, {new} if ended else {old, new})
            except BaseException as error:
                error.add_note(f"{name}: a power failure after call {number} of {in_order}")
                raise
            checked += 1
    for file in kept:
        os.close(file)
    return checked


def power_failures(work: Path, wanted: str) -> int:
    """Let the power fail in all cases.

    After each call, so many states are tried, or "all": all of fewer than 100,000, or 10,000.
    """
    most = (100_000, 10_000) if wanted == "all" else (int(wanted), int(wanted))
    return sum(fail(name, work / "root", *most) for name in CASES)


def left_out_syncs(work: Path, _: str) -> int:
    """Leave out the last sync of each kind of saves that promise them: each must be missed."""
    missed = 0
    for name, case in CASES.items():
        # The last file of a model of transformers is the same before and after, and the last two of
        # a chain are copies.
        if case.may_be_damaged or case.load in (load_model, load_step):
            continue
        prepare(case, work / "root")
        kinds = [call.fields[0] for call in record(case, work / "root")]
        for kind in {"sync", "sync-folder"} & {*kinds}:
            number = len(kinds) - 1 - kinds[::-1].index(kind)
            try:
                fail(name, work / "root", 1000, 1000, number)
            except (AssertionError, tensorizer_ops.errors.Error):
                missed += 1
            else:
                raise AssertionError(f"{name}: {kind}, call {number}, need not be made")
    return missed


def broken_calls(work: Path, wanted: str) -> int:
    """Let calls fail, and kill the process before them: so many at random, or "all"."""
    root, points, new = work / "root", [], {}
    for name, case in CASES.items():
        if not case.breaks:
            continue
        new[name] = new_of(case, root)
        prepare(case, root)
        _, calls = broken(case, root, NEVER, errno.EIO)
        points += [(name, how, n) for how in FAULTS for n in range(1, calls + 1)]
    if wanted != "all":
        points = random.Random(wanted).sample(points, int(wanted))
    for name, how, number in points:
        case = CASES[name]
        old = prepare(case, root)
        status, _ = broken(case, root, number, FAULTS[how])
        try:
            assert status in (0, FAILED, -signal.SIGKILL), status
            if status == FAILED and not case.in_place:
                names = [path.name for path in root.rglob("*") if path.is_file()]
                assert not any(name.startswith(".tensorizer-") for name in names), names
            check(case, root, {new[name]} if status == 0 else {old, new[name]})
        except BaseException as wrong:
            wrong.add_note(f"{name}: {how} at call {number}")
            raise
    return len(points)


def broken(case: Case, root: Path, number: int, error: int) -> tuple[int, int]:
    """Run the job in a fork in which a call fails. Returns its status, and how many it made."""
    counted = root.parent / "calls"
    counted.write_text("0")

    def job() -> None:
        os.environ |= {"DISK_ROOT": str(root), "DISK_FAIL": f"{number}:{error}"}
        try:
            case.job(root)
        except OSError:
            os._exit(FAILED)
        del os.environ["DISK_ROOT"]
        counted.write_text(str(ctypes.c_long.in_dll(ctypes.CDLL(None), "calls").value))

    return wait(fork(job)), int(counted.read_text())
