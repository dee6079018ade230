"""Runs all measurements of one workload, in rounds that measure every library."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.bare import programs as bare
from benchmarks.bare.programs import Limit, Program
from benchmarks.harness import workloads
from benchmarks.harness.libraries import (
    CHECKERS,
    KEY,
    LIBRARIES,
    PASSPHRASE,
    PEERS,
    TENSORIZER,
    US,
    US_ENCRYPTED,
    Library,
    Peer,
    why_not,
)
from benchmarks.harness.measure import Task, Timing, check, measure
from benchmarks.harness.memory import Failure, Reserve, State, make_cold, make_warm, settle, size_of
from benchmarks.harness.targets import COMPANION
from benchmarks.harness.turns import Turns
from benchmarks.harness.verdicts import Row, Rows, When
from benchmarks.harness.workloads import Workload

Entry = Limit | Peer


def _peers(*names: str) -> list[Peer]:
    return [peer for peer in PEERS if peer.name in names]


# Entries that are compared with each other run in succession, so that the machine's state is alike.
ENTRIES: tuple[Entry, ...] = tuple(
    dict.fromkeys(
        (
            *_peers("us, zero-copy", "us, safetensors, zero-copy", "safetensors"),
            bare.READ,
            *_peers("us, copy", "us, safetensors, copy", "tensorizer", "torch.load"),
            *_peers("fastsafetensors"),
            *(bare.READ_CRC32, *_peers("us, copy, verify crc32")),
            *(bare.READ_ALL, *_peers("us, copy, verify all", "tensorizer, verify_hash")),
            *(bare.READ_ENCRYPTED, *_peers("us, encrypted", "tensorizer, encrypted")),
            *(bare.DERIVE_KEY, PASSPHRASE),
            *bare.COLD,
            *(peer for peer in PEERS if peer.save is None),
            *(bare.WRITE, *_peers("us, save hashes=none")),
            *(bare.WRITE_CRC32, *_peers("us, save hashes=crc32")),
            *(bare.WRITE_ALL, *_peers("us, save hashes=all")),
            *(bare.WRITE_ENCRYPTED, *_peers("us, save encrypted", "tensorizer, save encrypted")),
            *(peer for peer in PEERS if peer.save is not None),
        )
    )
)


def is_save(entry: Entry) -> bool:
    return entry.mode.startswith("write") if isinstance(entry, Limit) else entry.save is not None


def is_cold(entry: Entry) -> bool:
    return isinstance(entry, Limit) and entry.cold


def has_cold(entry: Entry) -> bool:
    """Whether to measure an entry cold. Loads that hash are not: a disk hides that cost."""
    return not is_save(entry) and not entry.hashes


@dataclass(frozen=True)
class Settings:
    quick: bool
    repeat: int
    threads: int
    only: Sequence[str]  # prefixes of names; "limit" is every mode of the limit program
    programs: Path  # where the bare programs are built
    directory: Path
    reserve: Reserve


def _task(peer: Peer, path: Path, state: State) -> Task:
    """Return the task that loads from, or saves to, `path`."""
    library = peer.library

    def warm_up() -> None:
        tiny = {f"tiny.{i}": torch.arange(1024, dtype=torch.float32) + i for i in range(4)}
        place = path.parent / f"tiny{library.suffix}"
        (peer.save or library.save)(tiny, str(place))
        check((peer.load or CHECKERS[library.name])(str(place)), tiny)
        place.unlink()

    def save() -> State:
        assert peer.save is not None
        peer.save(state, str(path))
        return {}

    def check_saved(_: State) -> None:
        check(CHECKERS[library.name](str(path)), state)
        path.unlink()

    if peer.load is None:
        return Task(save, check_saved, warm_up, lambda: path.unlink(missing_ok=True), state)
    load = peer.load
    return Task(lambda: load(str(path)), lambda loaded: check(loaded, state), warm_up)


def _write(library: Library, path: Path, state: State) -> Task:
    """Return the task that writes the file for a library's loads, and syncs it to the disk."""

    def write() -> State:
        library.save(state, str(path))
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return {}

    return Task(write, lambda _: None)


class Bench:
    def __init__(self, workload: Workload, settings: Settings) -> None:
        self.workload = workload
        self.rows: Rows = {}
        self._turns = Turns(workload.name, self.rows, settings.repeat)
        self._settings = settings
        self._state = workloads.make(workload, settings.quick)
        self._companion: State = {}
        self._entries = self._choose_entries()
        self._chosen: dict[str, Peer] = {}
        self._program: Program | None = None
        self._encrypted_program: Program | None = None
        failures = self._write_files()
        for entry in self._entries:
            size = size_of(self._expected(entry))
            library = entry.library.name if isinstance(entry, Peer) else "limit"
            self.rows[entry.name] = Row(size, error=failures.get(library, ""))

    def _choose_entries(self) -> list[Entry]:
        entries = list(ENTRIES)
        if self.workload.name == "single":
            # The same bytes in smaller tensors, loaded in the same round for comparison.
            self._companion = workloads.companion(self._state)
            (copy,) = _peers("us, copy")
            entries.insert(entries.index(copy) + 1, Peer(COMPANION, US, load=copy.load))

        def wanted(entry: Entry) -> bool:
            if self.workload.name == "single" and entry.hashes:
                return False  # one SHA-256 cannot be parallelized in any library
            if self.workload.name != "small" and entry in (PASSPHRASE, bare.DERIVE_KEY):
                return False  # a file needs one derivation, regardless of its size
            return not self._settings.only or any(
                entry.name.startswith(name) or (name == "limit" and isinstance(entry, Limit))
                for name in self._settings.only
            )

        return [entry for entry in entries if wanted(entry)]

    def _path(self, library: Library) -> Path:
        return self._settings.directory / f"model{library.suffix}"

    def _companion_path(self) -> Path:
        return self._settings.directory / f"companion{US.suffix}"

    def _expected(self, entry: Entry) -> State:
        return self._companion if entry.name == COMPANION else self._state

    def _write_files(self) -> dict[str, str]:
        """Write the file that each library loads; return the reasons of those that failed."""
        failures: dict[str, str] = {}
        files: dict[Path, tuple[Library, State]] = {}
        needed = {entry.library for entry in self._entries if isinstance(entry, Peer)}
        if bare.READ_ENCRYPTED in self._entries:
            needed.add(US_ENCRYPTED)
        for library in LIBRARIES:
            if reason := why_not(library.module):
                failures[library.name] = reason
            elif library in needed or library in (US, TENSORIZER):
                files.setdefault(self._path(library), (library, self._state))
                if library is US and self._companion:
                    files[self._companion_path()] = (library, self._companion)
        gc.freeze()  # garbage collection in a forked process would copy every page it visits
        for path, (library, state) in files.items():
            try:
                self._measure_task(_write(library, path, state))
            except Failure as failure:
                failures[library.name] = str(failure)
        try:
            self._program = self._open_limit()
            if (encrypted := self._path(US_ENCRYPTED)).exists():
                settings = self._settings
                self._encrypted_program = Program(
                    settings.programs, encrypted, settings.threads, KEY
                )
        except Failure as failure:
            failures["limit"] = str(failure)
        return failures

    def _open_limit(self) -> Program:
        for library in (US, TENSORIZER):
            if (path := self._path(library)).exists():
                return Program(self._settings.programs, path, self._settings.threads)
        raise Failure("no .tensors file to read could be written")

    def run(self) -> None:
        # Cold reads come last: they fill the page cache with smaller pages than a save does, and
        # mapping those takes longer.
        self._measure_all("warm", [entry for entry in self._entries if not is_cold(entry)])
        cold = [entry for entry in self._entries if has_cold(entry)]
        # The limit is the best of several kinds of reads, on a disk whose speed varies. So every
        # library gets one try for each of these kinds.
        libraries = [entry for entry in cold if not isinstance(entry, Limit)]
        self._measure_all("cold", cold + libraries * (len(bare.COLD) - 1))

    def _measure_all(self, when: When, entries: list[Entry]) -> None:
        for entry in dict.fromkeys(entries):
            if is_cold(entry) == (when == "cold"):
                self._turns.attempt(entry, "rehearsal", self._rehearse)
        self._turns.take(when, entries, lambda entry: self._measure(entry, when))

    def _rehearse(self, entry: Entry) -> Timing:
        """Find the best choice and watch memory. Its timings are not recorded."""
        row = self.rows[entry.name]
        if isinstance(entry, Limit):
            if entry is not bare.DERIVE_KEY:
                row.choice = f"pieces of {entry.piece >> 10} KiB"
            return self._measure(entry)
        if entry.choices:
            choices = entry.choices[1:3] if self._settings.quick else entry.choices
            best = min(choices, key=lambda choice: self._measure(choice).ready)
            self._chosen[entry.name] = best
            row.choice = best.name.rpartition(", ")[2]
        timing = self._measure(entry, watch=True)
        row.memory = timing.memory
        return timing

    def _measure(self, entry: Entry, when: When = "warm", *, watch: bool = False) -> Timing:
        if not self._settings.quick:
            settle()
        path = self._file(entry)
        cold = when == "cold" or is_cold(entry)
        if cold:
            make_cold(path)
        elif not is_save(entry):
            make_warm(path)
        own = entry.repeats if isinstance(entry, Peer) else 1
        repeats = 1 if cold else max(self.workload.repeats, own)
        if isinstance(entry, Limit):
            return self._program_of(entry).measure(entry, repeats, self._settings.reserve)
        state = self._expected(entry)
        task = _task(self._chosen.get(entry.name, entry), path, state)
        # A save needs memory for the file, and as much again to check it.
        lend = size_of(state) * (1 if entry.save is None else 2)
        return self._measure_task(task, repeats, lend, watch)

    def _measure_task(
        self, task: Task, repeats: int = 1, lend: int = 0, watch: bool = False
    ) -> Timing:
        return measure(
            task,
            repeats=repeats,
            threads=self._settings.threads,
            reserve=self._settings.reserve,
            lend=lend,
            watch=watch,
        )

    def _program_of(self, limit: Limit) -> Program:
        program = self._encrypted_program if limit.reads_encrypted else self._program
        if program is None:
            raise Failure("the file that it reads could not be written")
        return program

    def _file(self, entry: Entry) -> Path:
        """Return the file that a load reads or a save writes."""
        if isinstance(entry, Limit):
            return self._program_of(entry).file
        if is_save(entry):
            return self._settings.directory / f"saved{entry.library.suffix}"
        return self._companion_path() if entry.name == COMPANION else self._path(entry.library)
