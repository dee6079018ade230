"""Compares checkpoints of several ranks with those of torch's own storage, and with bare writing.

    python -m benchmarks.local.checkpoints [--quick] [--mib 512] [--rounds 7]

Four processes with Gloo have a quarter of every tensor each. They call `tensorizer_ops.checkpoint`,
and torch.distributed.checkpoint with torch's `FileSystemWriter` and `-Reader`, all with their
defaults: files are on stable storage when a save ends. Every loaded byte is compared. A round does
everything once, and begins with another save each time; the median of the rounds counts.

  save    by all ranks, until all have ended
  load    into tensors that are there, from files in the page cache
  bare    write(), fsync() and rename() of the same bytes, by four processes: the bound of `save`
  hashed  the same with SHA-256 of the bytes in another thread, which `save, ours` computes, too
  alone   the same of one process, which saves all bytes into one file, with `fsync`, without hashes
          and with those of chunks
  train   products of matrices and all-reduces, with a save in the background during them; `lost` is
          what they take longer than without
  one     distributed.save() into one file, of shards by rows and by columns, which are exchanged
  gather  full_tensor() of all, and save() on rank 0: the file must be the same
  hub     the same bytes as bfloat16, with HuggingFaceStorageWriter and -Reader of both: torch's
          consolidates the files of the ranks. Loads are onto a mesh whose shards are twice as large
"""

from __future__ import annotations

import filecmp
import hashlib
import logging
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh

import tensorizer_ops
from benchmarks.harness import tables
from benchmarks.harness.measure import prepare_to_fork
from benchmarks.harness.ranks import run_ranks
from benchmarks.harness.results import Found, measured
from tensorizer_ops import checkpoint, distributed

RANKS, TENSORS = 4, 16
HASHES: tuple[Literal["none", "chunked"], ...] = ("none", "chunked")
STEPS, SAVED_AT, REDUCED_EVERY = 300, 20, 10
Times = dict[str, list[float]]


def in_turn(works: list[Callable[[], object]], number: int) -> None:
    """Do all, each time another one first: the disk may still have to do with the last one."""
    first = number % len(works)
    for work in works[first:] + works[:first]:
        work()


class Rank:
    """What one process does."""

    def __init__(self, folder: Path, rank: int, mebibytes: int) -> None:
        torch.set_num_threads(1)
        logging.disable(logging.WARNING)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
        )
        self.rank, self.steps = rank, min(STEPS, 4 * mebibytes)
        self.ours, self.theirs, self.bare = (folder / name for name in ("ours", "theirs", "bare"))
        # Saves in the background must not use the group that the training uses.
        self.group = dist.new_group(backend="gloo")
        mesh = init_device_mesh("cpu", (RANKS,))
        rows = max((mebibytes << 20) // RANKS // TENSORS // 4096, 1)
        generator = torch.Generator().manual_seed(rank)
        self.saved = [torch.randn(rows, 1024, generator=generator) for _ in range(TENSORS)]

        # What one process saves alone.
        parts = range(RANKS * TENSORS if rank == 0 else 0)
        self.whole = {str(i): torch.randn(rows, 1024, generator=generator) for i in parts}

        def state(dimension: int, locals: list[torch.Tensor]) -> dict[str, Any]:
            return {
                f"layer.{i}.weight": DTensor.from_local(local, mesh, [Shard(dimension)])
                for i, local in enumerate(locals)
            }

        self.state = state(0, [local.clone() for local in self.saved])
        self.half = {
            name: DTensor.from_local(each.to_local().view(torch.bfloat16), mesh, [Shard(0)])
            for name, each in self.state.items()
        }
        self.halves = init_device_mesh("cpu", (RANKS // 2, 2))
        self.columns = state(1, [local.t().contiguous() for local in self.saved])
        self.times: Times = {}

    def timed(self, name: str, work: Callable[[], object]) -> None:
        dist.barrier()
        if self.rank == 0:
            os.sync()  # what was done before is no part of it
        dist.barrier()
        begin = time.perf_counter()
        work()
        dist.barrier()
        self.times.setdefault(name, []).append(time.perf_counter() - begin)

    def clean(self) -> None:
        dist.barrier()
        if self.rank == 0:
            for folder in (self.ours, self.theirs, self.bare):
                shutil.rmtree(folder, ignore_errors=True)
        dist.barrier()

    def write(self, tensors: Iterable[torch.Tensor]) -> None:
        self.bare.mkdir(exist_ok=True)
        path = self.bare / str(self.rank)
        with open(f"{path}.part", "wb", buffering=0) as file:
            for tensor in tensors:
                assert file.write(tensor.numpy().data) == tensor.nbytes
            os.fsync(file.fileno())
        os.rename(f"{path}.part", path)
        folder = os.open(self.bare, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def write_and_hash(self) -> None:
        hashing = threading.Thread(
            target=lambda: [hashlib.sha256(tensor.numpy().data) for tensor in self.saved]
        )
        hashing.start()
        self.write(self.saved)
        hashing.join()

    def save_alone(self, name: str, save: Callable[[], object]) -> None:
        self.clean()
        self.timed(f"alone, {name}", lambda: save() if self.rank == 0 else None)

    def train(self, name: str, save: Callable[[], Any]) -> None:
        matrix = torch.ones(400, 400)
        saving: list[Any] = []

        def steps() -> None:
            for step in range(self.steps):
                matrix @ matrix
                if step == SAVED_AT:
                    saving.append(save())
                if step % REDUCED_EVERY == 0:
                    dist.all_reduce(torch.ones(1))

        self.clean()
        self.timed(name, steps)
        if saving and saving[0]:
            saving[0].result()

    def save_ours(self) -> Any:
        return checkpoint.save_async(self.ours, self.state, self.group)

    def save_theirs(self) -> Any:
        writer = dcp.FileSystemWriter(self.theirs)
        return dcp.async_save(self.state, storage_writer=writer, process_group=self.group)

    def check(self) -> None:
        for tensor, saved in zip(self.state.values(), self.saved, strict=True):
            assert torch.equal(tensor.to_local(), saved), "other bytes arrived"
            tensor.to_local().zero_()

    def save_at_once(self, how: str, state: dict[str, Any]) -> None:
        one, gathered = self.ours / "one.tensors", self.theirs / "all.tensors"
        self.clean()
        self.timed(f"one, {how}", lambda: distributed.save(one, state))
        self.timed(f"gather, {how}", lambda: self.gather_and_save(gathered, state))
        if self.rank == 0:
            assert filecmp.cmp(one, gathered, shallow=False), "another file was written"

    def hub(self, who: str, writer: Any, reader: Any) -> None:
        self.timed(f"hub save, {who}", lambda: dcp.save(self.half, storage_writer=writer))
        place = [Replicate(), Shard(0)]
        loaded = {
            name: DTensor.from_local(each.to_local().repeat(2, 1).zero_(), self.halves, place)
            for name, each in self.half.items()
        }
        self.timed(f"hub load, {who}", lambda: dcp.load(loaded, storage_reader=reader))
        for half in range(2):
            generator = torch.Generator().manual_seed(self.rank % 2 * 2 + half)
            for tensor, saved in zip(loaded.values(), self.saved, strict=True):
                wanted = torch.randn(saved.shape, generator=generator).view(torch.bfloat16)
                part = tensor.to_local().chunk(2)[half]
                assert torch.equal(part.view(torch.int16), wanted.view(torch.int16)), "other bytes"

    def gather_and_save(self, path: Path, state: dict[str, Any]) -> None:
        full = {name: tensor.full_tensor() for name, tensor in state.items()}
        if self.rank == 0:
            tensorizer_ops.save(path, full, hashes="chunked")

    def round(self, number: int) -> None:
        path, options = f"{self.ours}.tensors", {"fsync": "true"}
        alone: list[Callable[[], object]] = [
            partial(self.save_alone, "bare", lambda: self.write(self.whole.values()))
        ]
        for hashes in HASHES:
            how: dict[str, Any] = {"hashes": hashes, "threads": os.cpu_count(), "options": options}
            save = partial(tensorizer_ops.save, path, self.whole, **how)
            alone.append(partial(self.save_alone, f"hashes {hashes}", save))
        in_turn(alone, number)
        self.clean()
        writer = dcp.FileSystemWriter(self.theirs)
        saves: list[Callable[[], object]] = [
            lambda: self.timed("bare", lambda: self.write(self.saved)),
            lambda: self.timed("hashed", self.write_and_hash),
            lambda: self.timed("save, ours", lambda: checkpoint.save(self.ours, self.state)),
            lambda: self.timed("save, theirs", lambda: dcp.save(self.state, storage_writer=writer)),
        ]
        in_turn(saves, number)
        self.check()
        self.timed("load, ours", lambda: checkpoint.load(self.ours, self.state))
        self.check()
        reader = dcp.FileSystemReader(self.theirs)
        self.timed("load, theirs", lambda: dcp.load(self.state, storage_reader=reader))
        self.check()
        for tensor, saved in zip(self.state.values(), self.saved, strict=True):
            tensor.to_local().copy_(saved)
        self.clean()
        ours = checkpoint.HuggingFaceStorageWriter(self.ours)
        self.hub("ours", ours, checkpoint.HuggingFaceStorageReader(self.ours))
        theirs = dcp.HuggingFaceStorageWriter(
            str(self.theirs), save_distributed=True, enable_consolidation=True
        )
        self.hub("theirs", theirs, dcp.HuggingFaceStorageReader(str(self.theirs)))
        self.save_at_once("rows", self.state)
        self.save_at_once("columns", self.columns)
        self.train("train", lambda: None)
        self.train("train, ours", self.save_ours)
        self.train("train, theirs", self.save_theirs)


def run(folder: Path, rank: int, mebibytes: int, rounds: int) -> Times:
    one = Rank(folder, rank, mebibytes)
    for number in range(rounds + 1):
        one.round(number)
        if number == 0:  # it has made memory and started threads
            one.times.clear()
    dist.destroy_process_group()
    return one.times


def measure_all(folder: Path, mebibytes: int, rounds: int) -> Found:
    times: Times = run_ranks(folder, RANKS, lambda rank: run(folder, rank, mebibytes, rounds))[0]
    seconds = {name: statistics.median(each) for name, each in times.items()}
    lost = {
        who: statistics.median(
            [a - b for a, b in zip(times[f"train, {who}"], times["train"], strict=True)]
        )
        for who in ("ours", "theirs")
    }

    def of_pairs(name: str, bound: str) -> float:
        pairs = zip(times[name], times[bound], strict=True)
        return statistics.median(a / b for a, b in pairs)

    ratios = {
        **{f"alone, {h}, of bare": of_pairs(f"alone, hashes {h}", "alone, bare") for h in HASHES},
        "save, of bare": of_pairs("save, ours", "bare"),
        "hashed, of bare": of_pairs("hashed", "bare"),
        "save": seconds["save, theirs"] / seconds["save, ours"],
        "save, theirs, of bare": of_pairs("save, theirs", "bare"),
        "load": seconds["load, theirs"] / seconds["load, ours"],
        "lost": lost["ours"] / lost["theirs"],
        "hub save": seconds["hub save, theirs"] / seconds["hub save, ours"],
        "hub load": seconds["hub load, theirs"] / seconds["hub load, ours"],
        "one file, rows": seconds["gather, rows"] / seconds["one, rows"],
        "one file, columns": seconds["gather, columns"] / seconds["one, columns"],
    }
    return {"mib": mebibytes, "ranks": RANKS, "seconds": seconds, "lost": lost, "ratios": ratios}


def main() -> None:
    prepare_to_fork()
    found = measured(__doc__, ("mib", 512, 16), 7, measure_all, "checkpoints")
    print(tables.of_seconds(found["seconds"], found["mib"] << 20))
    print(tables.of_ratios(found["ratios"]))


if __name__ == "__main__":
    main()
