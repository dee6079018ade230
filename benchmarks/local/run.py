"""Compares loads and saves with other libraries and with the machine's limit, in one run.

    python -m benchmarks.local.run [--quick] [--workloads large,small] [--peers us,limit,tensorizer]

Every library uses the CPUs that this process may use: `taskset -c 0,1` measures with two.

Nothing is synced to the disk: a save ends when the kernel has the bytes. Every loaded or saved byte
is compared with the original, outside of the timing. A load ends when its values are in memory: if
they are mapped, one byte of every page is read. GB are 10^9 bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.harness import bare
from benchmarks.harness.bare import Limit
from benchmarks.harness.compare import Scene, compare
from benchmarks.harness.contenders import TINY, Contender, Setting, best_of
from benchmarks.harness.libraries import (
    FAST,
    FLASHPACK,
    SAFETENSORS,
    STREAMER,
    TENSORIZER,
    TORCH,
    US,
    US_CHUNKS,
    US_SAFETENSORS,
    Library,
    Load,
    Save,
    fast_load,
    flashpack_load,
    ops_load,
    ops_save,
    safetensors_load,
    streamer_load,
    tensorizer_load,
    torch_load,
)
from benchmarks.harness.measure import Task, check, saving
from benchmarks.harness.memory import State
from benchmarks.harness.results import When
from benchmarks.harness.workloads import LARGE, SINGLE, SMALL, TRANSFORMER

MAPPED = 7  # a process repeats loads that only map a file, as they take milliseconds


@dataclass(frozen=True)
class Peer:
    """One way to load or to save."""

    name: str
    library: Library
    load: Load | None = None
    save: Save | None = None
    # Whether it computes checksums. Such loads are not measured cold: a disk hides that cost.
    hashes: bool = False
    repeats: int = 1
    # Alternatives by name; the fastest one in a first round is measured.
    choices: tuple[tuple[str, Load], ...] = ()


def _by_readers(verify: bool = False) -> tuple[tuple[str, Load], ...]:
    return tuple((f"num_readers={n}", tensorizer_load(n, verify_hash=verify)) for n in (2, 4, 1, 8))


VERIFIED = ops_load(copy=True, verify="all")
# Entries that are compared run one after another, so that the machine is in the same state.
ENTRIES: tuple[Limit | Peer, ...] = (
    Peer("us, zero-copy", US, ops_load(copy=False), repeats=MAPPED),
    Peer("us, safetensors, zero-copy", US_SAFETENSORS, ops_load(), repeats=MAPPED),
    Peer("safetensors", SAFETENSORS, SAFETENSORS.load, repeats=MAPPED),
    bare.READ,
    Peer("us, copy", US, ops_load(copy=True)),
    Peer("us, safetensors, copy", US_SAFETENSORS, ops_load(copy=True)),
    Peer("safetensors, pread", SAFETENSORS, partial(safetensors_load, backend="pread")),
    Peer("tensorizer", TENSORIZER, choices=_by_readers()),
    Peer("torch.load", TORCH, torch_load(mmap=False)),
    Peer("fastsafetensors", FAST, fast_load),
    bare.READ_CRC32,
    Peer("us, copy, verify crc32", US, ops_load(copy=True, verify="crc32"), hashes=True),
    bare.READ_ALL,
    Peer("us, copy, verify all", US, VERIFIED, hashes=True),
    bare.READ_LANES,
    Peer("us, chunks, copy, verify all", US_CHUNKS, VERIFIED, hashes=True),
    Peer("us, chunks, zero-copy, verify all", US_CHUNKS, ops_load(verify="all"), hashes=True),
    Peer("tensorizer, verify_hash", TENSORIZER, choices=_by_readers(verify=True), hashes=True),
    *bare.COLD,
    Peer("torch.load, mmap", TORCH, torch_load(mmap=True), repeats=MAPPED),
    Peer("flashpack", FLASHPACK, FLASHPACK.load, repeats=MAPPED),
    Peer("flashpack, parallel read", FLASHPACK, flashpack_load(parallel=True)),
    Peer("Run:ai streamer", STREAMER, streamer_load()),
    bare.WRITE,
    Peer("us, save hashes=none", US, save=ops_save("none")),
    bare.WRITE_CRC32,
    Peer("us, save hashes=crc32", US, save=ops_save("crc32")),
    bare.WRITE_ALL,
    Peer("us, save hashes=all", US, save=ops_save("all")),
    bare.WRITE_LANES,
    Peer("us, chunks, save", US_CHUNKS, save=US_CHUNKS.save),
    Peer("us, safetensors, save", US_SAFETENSORS, save=ops_save("none")),
    Peer("tensorizer, save", TENSORIZER, save=TENSORIZER.save),
    Peer("torch.save", TORCH, save=TORCH.save),
    Peer("safetensors, save", SAFETENSORS, save=SAFETENSORS.save),
    Peer("flashpack, save", FLASHPACK, save=FLASHPACK.save),
)


def contenders(setting: Setting) -> Iterator[list[Contender]]:
    entries = [entry for entry in ENTRIES if setting.wants(entry.name)]
    if len(setting.state) == 1:  # other hashes of one tensor take one thread, whatever is measured
        entries = [entry for entry in entries if "chunks" in entry.name]
    peers = [entry for entry in entries if isinstance(entry, Peer)]
    ours = file_of(setting, US)
    for library in dict.fromkeys((US, *(peer.library for peer in peers))):
        if not (path := file_of(setting, library)).exists():
            setting.write(synced(library.save), path)
    found: list[Contender] = []
    for when in ("warm", "cold"):
        for entry in entries:
            if isinstance(entry, Limit):
                if entry.cold == (when == "cold"):
                    found.append(setting.limit(entry, ours, setting.repeats))
            elif when == "warm" or not (entry.save or entry.hashes):
                found.append(contender(setting, entry, when))
    yield found


def file_of(setting: Setting, library: Library, stem: str = "model") -> Path:
    return setting.directory / f"{stem}{library.suffix}"


def synced(save: Save) -> Save:
    def save_and_sync(state: State, place: str) -> None:
        save(state, place)
        with open(place, "rb") as file:
            os.fsync(file.fileno())

    return save_and_sync


def contender(setting: Setting, peer: Peer, when: When) -> Contender:
    if peer.choices:
        choices = (
            contender(setting, replace(peer, name=f"{peer.name}, {n}", load=load, choices=()), when)
            for n, load in peer.choices
        )
        return best_of(peer.name, choices, setting.quick)
    library, load, save = peer.library, peer.load or peer.library.load, peer.save
    path = file_of(setting, library, "saved" if save else "model")
    repeats = 1 if when == "cold" else max(setting.repeats, peer.repeats)

    def warm_up() -> None:
        place = str(file_of(setting, library, "tiny"))
        (save or library.save)(TINY, place)
        check(load(place), TINY)

    if save:
        task = saving(save, load, setting.state, path, warm_up)
        return setting.performs(peer.name, task, None, repeats, when)
    task = Task(lambda: load(str(path)), lambda loaded: check(loaded, setting.state), warm_up)
    return setting.performs(peer.name, task, path, repeats, when)


def main() -> None:
    scenes = {
        "large": Scene("1 GiB in tensors of 32 MiB", LARGE, contenders),
        "small": Scene("3,000 tensors of 1 KiB", SMALL, contenders),
        "single": Scene("one tensor of 2 GiB", SINGLE, contenders),
        "transformer": Scene("a transformer's shapes in bfloat16", TRANSFORMER, contenders),
    }
    compare(__doc__, "local", scenes)


if __name__ == "__main__":
    main()
