"""One measurement: a fresh process loads or saves once, and is watched from outside.

The processes are forked from one that has imported everything and used nothing, so that imports
cost nobody anything and every load gets memory that is new to it. Before the clock starts, each
process saves and loads something tiny: thread pools and late imports are not what is compared.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import multiprocessing
import os
import signal
import statistics
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from peers import CHECKERS, Library, Peer, State

PAGE = mmap.PAGESIZE
_FORK = multiprocessing.get_context("fork")
_TIME_OUT = 600.0


class Failure(Exception):
    """A measurement that gave no figure; the text says why."""


@dataclass(frozen=True)
class Timing:
    seconds: float  # until the call returned
    ready: float  # until, on top of that, every page of every tensor had been touched
    memory: int | None  # the peak of private memory beyond the tensors, where it was watched


# -- page cache ------------------------------------------------------------------------------------


def resident(path: Path) -> float:
    """The part of a file that is in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
        count = (len(view) + PAGE - 1) // PAGE
        pages = (ctypes.c_ubyte * count)()
        start = ctypes.c_char.from_buffer(view)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.byref(start), ctypes.c_size_t(len(view)), pages)
        del start
        if failed:
            raise OSError(ctypes.get_errno(), "mincore", str(path))
        return sum(page & 1 for page in bytes(pages)) / count


def make_cold(path: Path) -> None:
    """Takes a file out of the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if (left := resident(path)) > 0.01:
        raise Failure(f"{left:.0%} of {path.name} stays in the page cache")


def make_warm(path: Path) -> None:
    """Brings all of a file into the page cache."""
    if resident(path) == 1.0:
        return
    buffer = bytearray(8 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    if (there := resident(path)) < 1.0:
        raise Failure(f"only {there:.0%} of {path.name} stays in the page cache: too little memory")


def settle() -> None:
    """Waits until no earlier save is still on its way to the disk."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    if sum(int(fields[key].split()[0]) for key in ("Dirty", "Writeback")) > 64 << 10:
        os.sync()


# -- memory ----------------------------------------------------------------------------------------


def private_memory(process: int | str = "self") -> int:
    """The memory of a process that no file backs.

    Pages of a mapped file are left out: they are the page cache, which the kernel takes back when
    it likes. So a tensor counts when its loader gave it memory, and does not when it is a mapping.
    """
    total = 0
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            total += int(line.split()[1]) << 10
    return total


def _file_mappings() -> tuple[list[int], list[int]]:
    starts, ends = [], []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, _, inode = line.split()[:5]
        if inode != "0":
            start, end = (int(address, 16) for address in addresses.split("-"))
            starts.append(start)
            ends.append(end)
    return starts, ends


def mapped(state: State) -> State:
    """Those of the tensors that lie in a mapping of a file."""
    starts, ends = _file_mappings()

    def is_mapped(tensor: torch.Tensor) -> bool:
        i = bisect.bisect_right(starts, tensor.data_ptr()) - 1
        return i >= 0 and tensor.data_ptr() < ends[i]

    return {name: tensor for name, tensor in state.items() if is_mapped(tensor)}


def _spans(state: State) -> list[tuple[int, int]]:
    """The whole pages that tensors lie on, neighbours merged, as (address, size)."""
    spans: list[tuple[int, int]] = []
    for start, size in sorted((tensor.data_ptr(), tensor.nbytes) for tensor in state.values()):
        if size == 0:
            continue
        first, end = start // PAGE * PAGE, (start + size + PAGE - 1) // PAGE * PAGE
        if spans and first <= sum(spans[-1]):
            first = spans.pop()[0]
        spans.append((first, end - first))
    return spans


def touch(spans: list[tuple[int, int]]) -> int:
    """Reads one byte of every page."""
    total = 0
    for address, size in spans:
        memory = (ctypes.c_uint8 * size).from_address(address)
        total += int(torch.frombuffer(memory, dtype=torch.uint8)[::PAGE].sum())
    return total


# -- what happens in the process -------------------------------------------------------------------


def check(state: State, expected: State) -> None:
    """Raises unless both hold the same names, shapes, dtypes and bytes."""
    if state.keys() != expected.keys():
        raise Failure("other names than were saved")
    for name, tensor in expected.items():
        other = state[name].detach()
        if other.dtype != tensor.dtype or other.shape != tensor.shape:
            raise Failure(f"{name} has another dtype or shape than was saved")
        # As integers, because a random NaN is not equal to itself.
        if not torch.equal(other.view(-1).view(torch.int64), tensor.view(-1).view(torch.int64)):
            raise Failure(f"{name} has other bytes than were saved")


def _warm_up(peer: Peer, directory: Path) -> None:
    tiny = {f"tiny.{i}": torch.arange(1024, dtype=torch.float32) + i for i in range(4)}
    path = directory / f"tiny{peer.library.suffix}"
    (peer.save or peer.library.save)(tiny, str(path))
    load = peer.load or CHECKERS[peer.library.name]
    check(load(str(path)), tiny)
    path.unlink()


def _load(peer: Peer, path: Path, expected: State, repeats: int, pipe: Connection) -> None:
    assert peer.load is not None
    timings: list[tuple[float, float]] = []
    for i in range(repeats):
        state: State = {}  # the memory of the last repetition goes here
        if i == repeats - 1:
            pipe.send(private_memory())
            pipe.recv()
        start = perf_counter()
        state = peer.load(str(path))
        seconds = perf_counter() - start
        in_file = mapped(state)
        spans = _spans(in_file)
        start = perf_counter()
        touch(spans)
        timings.append((seconds, seconds + perf_counter() - start))
    own = sum(tensor.nbytes for tensor in state.values())
    pipe.send(own - sum(tensor.nbytes for tensor in in_file.values()))
    check(state, expected)
    pipe.send(_typical(timings))


def _save(peer: Peer, path: Path, state: State, repeats: int, pipe: Connection) -> None:
    assert peer.save is not None
    timings: list[tuple[float, float]] = []
    for i in range(repeats):
        path.unlink(missing_ok=True)
        if i == repeats - 1:
            pipe.send(private_memory())
            pipe.recv()
        start = perf_counter()
        peer.save(state, str(path))
        seconds = perf_counter() - start
        timings.append((seconds, seconds))
    pipe.send(0)
    check(CHECKERS[peer.library.name](str(path)), state)
    path.unlink()
    pipe.send(_typical(timings))


def _typical(timings: list[tuple[float, float]]) -> tuple[float, float]:
    """The median repetition; the first one of several is a warm-up."""
    if len(timings) > 1:
        timings = timings[1:]
    return (
        statistics.median(seconds for seconds, _ in timings),
        statistics.median(ready for _, ready in timings),
    )


# -- and outside -----------------------------------------------------------------------------------


def in_child(work: Callable[[Connection], None], threads: int, watch: bool) -> Timing:
    """Runs `work` in a new process and watches its memory meanwhile.

    It sends its memory, waits for an answer, and begins; then it sends what its tensors take, and
    its timings.
    """

    def child(pipe: Connection) -> None:
        torch.set_num_threads(threads)
        try:
            work(pipe)
        except Failure as failure:
            pipe.send(failure)
        except Exception as error:
            reason = "".join(traceback.format_exception_only(error)).strip()
            pipe.send(Failure(reason.splitlines()[0]))

    here, there = _FORK.Pipe()
    process = _FORK.Process(target=child, args=(there,))
    process.start()
    there.close()

    def receive() -> Any:
        if not here.poll(_TIME_OUT):
            raise Failure(f"no end after {_TIME_OUT:.0f} s")
        value = here.recv()
        if isinstance(value, Failure):
            raise value
        return value

    try:
        baseline = peak = receive()
        here.send("go")
        while watch and not here.poll(0.002):
            peak = max(peak, private_memory(str(process.pid)))
        tensors = receive()
        seconds, ready = receive()
    except (EOFError, OSError):
        process.join(_TIME_OUT)
        raise Failure(f"the process died: {_reason(process.exitcode)}") from None
    finally:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
        here.close()
    return Timing(seconds, ready, max(0, peak - baseline - tensors) if watch else None)


def _reason(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"exit status {exit_code}"


def measure(
    peer: Peer, path: Path, state: State, *, repeats: int, threads: int, watch: bool = False
) -> Timing:
    """Loads from, or saves to, `path`, and checks every byte afterwards."""

    def work(pipe: Connection) -> None:
        _warm_up(peer, path.parent)
        (_load if peer.load is not None else _save)(peer, path, state, repeats, pipe)

    return in_child(work, threads, watch)


def write(library: Library, path: Path, state: State, threads: int) -> None:
    """Makes the file that a library's loads read, and puts it on the disk."""

    def work(pipe: Connection) -> None:
        pipe.send(0)
        pipe.recv()
        library.save(state, str(path))
        with path.open("rb") as file:
            os.fsync(file.fileno())
        pipe.send(0)
        pipe.send((0.0, 0.0))

    in_child(work, threads, watch=False)
