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
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bare import programs
from benchmarks.bare.programs import Limit
from benchmarks.harness import workloads
from benchmarks.harness.compare import Scene, compare
from benchmarks.harness.contenders import TINY, Contender, Setting, best_of, nothing_of, unless
from benchmarks.harness.libraries import (
    FAST,
    FLASHPACK,
    SAFETENSORS,
    STREAMER,
    TENSORIZER,
    TORCH,
    US,
    US_SAFETENSORS,
    Library,
    Load,
    Save,
    fast_load,
    flashpack_load,
    ops_load,
    ops_save,
    streamer_load,
    tensorizer_load,
    torch_load,
    why_not,
)
from benchmarks.harness.measure import Task, check
from benchmarks.harness.memory import Failure, State, size_of
from benchmarks.harness.results import When
from benchmarks.harness.tables import Target

MAPPED = 7  # a process repeats loads that only map a file, as they take milliseconds
# The same bytes as those of one large tensor, in smaller ones.
COMPANION = "us, copy, the 32 MiB case"


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


# What is compared with each other runs in succession, so that the machine's state is alike.
ENTRIES: tuple[Limit | Peer, ...] = (
    Peer("us, zero-copy", US, ops_load(copy=False), repeats=MAPPED),
    Peer("us, safetensors, zero-copy", US_SAFETENSORS, ops_load(), repeats=MAPPED),
    Peer("safetensors", SAFETENSORS, SAFETENSORS.load, repeats=MAPPED),
    programs.READ,
    Peer("us, copy", US, ops_load(copy=True)),
    Peer(COMPANION, US, ops_load(copy=True)),
    Peer("us, safetensors, copy", US_SAFETENSORS, ops_load(copy=True)),
    Peer("tensorizer", TENSORIZER, choices=_by_readers()),
    Peer("torch.load", TORCH, torch_load(mmap=False)),
    Peer("fastsafetensors", FAST, fast_load),
    programs.READ_CRC32,
    Peer("us, copy, verify crc32", US, ops_load(copy=True, verify="crc32"), hashes=True),
    programs.READ_ALL,
    Peer("us, copy, verify all", US, ops_load(copy=True, verify="all"), hashes=True),
    Peer("tensorizer, verify_hash", TENSORIZER, choices=_by_readers(verify=True), hashes=True),
    *programs.COLD,
    Peer("torch.load, mmap", TORCH, torch_load(mmap=True), repeats=MAPPED),
    Peer("flashpack", FLASHPACK, FLASHPACK.load, repeats=MAPPED),
    Peer("flashpack, parallel read", FLASHPACK, flashpack_load(parallel=True)),
    Peer("Run:ai streamer", STREAMER, streamer_load()),
    programs.WRITE,
    Peer("us, save hashes=none", US, save=ops_save("none")),
    programs.WRITE_CRC32,
    Peer("us, save hashes=crc32", US, save=ops_save("crc32")),
    programs.WRITE_ALL,
    Peer("us, save hashes=all", US, save=ops_save("all")),
    Peer("us, safetensors, save", US_SAFETENSORS, save=ops_save("none")),
    Peer("tensorizer, save", TENSORIZER, save=TENSORIZER.save),
    Peer("torch.save", TORCH, save=TORCH.save),
    Peer("safetensors, save", SAFETENSORS, save=SAFETENSORS.save),
    Peer("flashpack, save", FLASHPACK, save=FLASHPACK.save),
)
# Of a single tensor, only these are measured.
OF_ONE_TENSOR = ("us, copy", COMPANION, programs.READ.name)

_MODELS = ("large", "transformer")
_READ, _SAFETENSORS = (programs.READ.name,), ("safetensors",)
TARGETS = (
    *(
        Target(workload, *rest)
        for workload in _MODELS
        for rest in (
            ("us, copy", 0.9, _READ),
            ("us, copy", 2.5, ("tensorizer",)),
            ("us, copy", 4, ("torch.load",)),
            ("us, zero-copy", 1.0, _SAFETENSORS),
            ("us, safetensors, copy", 0.9, _READ),
            ("us, safetensors, copy", 2, ("fastsafetensors",)),
            ("us, safetensors, zero-copy", 0.95, _SAFETENSORS),
            ("us, copy, verify all", 1.35, (programs.READ_ALL.name,)),
            ("us, copy, verify all", 2.2, ("tensorizer, verify_hash",)),
            ("us, copy, verify crc32", 0.9, (programs.READ_CRC32.name,)),
            ("us, save hashes=all", 1.25, (programs.WRITE_ALL.name,)),
            ("us, save hashes=all", 2, ("tensorizer, save",)),
            ("us, save hashes=all", 1.7, ("torch.save",)),
            ("us, save hashes=crc32", 0.9, (programs.WRITE_CRC32.name,)),
        )
    ),
    *(
        Target(workload, "us, copy", 0.9, tuple(limit.name for limit in programs.COLD), "cold")
        for workload in _MODELS
    ),
    Target("small", "us, zero-copy", 5, _SAFETENSORS),
    Target("small", "us, save hashes=all", 3, ("safetensors, save",)),
    Target("single", "us, copy", 0.9, (COMPANION,)),
)


def contenders(setting: Setting) -> Iterator[list[Contender]]:
    setting.directory.mkdir()
    companion = workloads.companion(setting.state) if len(setting.state) == 1 else {}

    def wanted(entry: Limit | Peer) -> bool:
        if entry.name not in OF_ONE_TENSOR and companion:
            return False
        if entry.name == COMPANION and not companion:
            return False
        return setting.wants(entry.name)

    entries = [entry for entry in ENTRIES if wanted(entry)]
    peers = [entry for entry in entries if isinstance(entry, Peer)]
    ours = file_of(setting, US)
    failures: dict[str, str] = {}
    for library in dict.fromkeys((US, *(peer.library for peer in peers))):
        failures[library.name] = why_not(library.module) or write(setting, library, setting.state)
    if failures[US.name]:
        raise Failure(failures[US.name])
    if companion:
        write(setting, US, companion, "companion")
    found: list[Contender] = []
    for when in ("warm", "cold"):
        for entry in entries:
            if isinstance(entry, Limit):
                if entry.cold == (when == "cold"):
                    found.append(setting.limit(entry, ours, setting.repeats))
            elif when == "warm" or not (entry.save or entry.hashes):
                state = companion if entry.name == COMPANION else setting.state
                made = contender(setting, entry, state, when)
                found.append(unless(failures[entry.library.name], made))
    yield found


def file_of(setting: Setting, library: Library, stem: str = "model") -> Path:
    return setting.directory / f"{stem}{library.suffix}"


def write(setting: Setting, library: Library, state: State, stem: str = "model") -> str:
    """Write the file for a library's loads, and sync it to the disk; return why that failed."""
    path = file_of(setting, library, stem)

    def save(state: State, place: str) -> None:
        library.save(state, place)
        with open(place, "rb") as file:
            os.fsync(file.fileno())

    return "" if path.exists() else setting.prepare("", lambda: setting.write(save, state, path))


def contender(setting: Setting, peer: Peer, state: State, when: When) -> Contender:
    if peer.choices:
        choices = [
            Peer(f"{peer.name}, {name}", peer.library, load, hashes=peer.hashes)
            for name, load in peer.choices
        ]
        made = (contender(setting, choice, state, when) for choice in choices)
        return best_of(peer.name, made, setting.quick)
    library, load = peer.library, peer.load or peer.library.load
    stem = "saved" if peer.save else "companion" if peer.name == COMPANION else "model"
    path = file_of(setting, library, stem)

    def warm_up() -> None:
        place = path.parent / f"tiny{library.suffix}"
        (peer.save or library.save)(TINY, str(place))
        check(load(str(place)), TINY)
        place.unlink()

    def check_saved(_: State) -> None:
        check(load(str(path)), state)
        path.unlink()

    if save := peer.save:
        task = Task(
            lambda: nothing_of(save(state, str(path))),
            check_saved,
            warm_up,
            lambda: path.unlink(missing_ok=True),
            state,
        )
    else:
        task = Task(lambda: load(str(path)), lambda loaded: check(loaded, state), warm_up)
    repeats = 1 if when == "cold" else max(setting.repeats, peer.repeats)
    # A save needs memory for the file, and as much again to check it.
    lend = size_of(state) * (2 if peer.save else 1)
    file = None if peer.save else path
    return setting.contender(peer.name, size_of(state), lambda: task, lend, file, repeats, when)


def main() -> None:
    scenes = {
        workload.name: Scene(workload.title, workload, contenders) for workload in workloads.LOCAL
    }
    compare(__doc__, "local", scenes, TARGETS)


if __name__ == "__main__":
    main()
