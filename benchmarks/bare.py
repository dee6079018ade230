"""The bare programs as more things to measure: their modes, where data lies, their figures."""

from __future__ import annotations

import json
import os
import statistics
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import Timing
from memory import Failure, Reserve

HERE = Path(__file__).parent
FLAGS = ("-std=c++20", "-O2", "-pthread")
LIBRARIES = {"limit": ("-lcrypto", "-ldeflate"), "bare_http": ("-lcurl",)}

KIB = 1 << 10
# The best of 256 KiB to 8 MiB, found once: a choice in every run would be made by chance. What is
# hashed has to be in cache still when SHA-256 follows CRC32, and a disk likes large reads.
PIECE, PIECE_ALL, PIECE_COLD = 1024 * KIB, 256 * KIB, 2048 * KIB


@dataclass(frozen=True)
class Limit:
    """One mode of the limit program."""

    name: str
    mode: str
    threads: int | None = None  # None: as many as everyone else has CPUs
    cold: bool = False

    @property
    def hashes(self) -> bool:
        return "-" in self.mode

    @property
    def piece(self) -> int:
        return PIECE_COLD if self.cold else PIECE_ALL if self.mode.endswith("-all") else PIECE


READ = Limit("limit, pread", "read")
READ_CRC32 = Limit("limit, pread + crc32", "read-crc32")
READ_ALL = Limit("bare work, pread + crc32 + libcrypto sha256", "read-all")
WRITE = Limit("limit, pwrite", "write")
WRITE_CRC32 = Limit("limit, pwrite + crc32", "write-crc32")
WRITE_ALL = Limit("bare work, crc32 + libcrypto sha256 + pwrite", "write-all")
COLD = tuple(
    Limit(f"cold pread, {threads} at once", "read", threads=threads, cold=True)
    for threads in (2, 8, 32)
)


def data_ranges(path: Path) -> list[tuple[int, int]]:
    """Offset and size of every tensor's data in a .tensors file of version 1 to 4."""
    with path.open("rb") as file:
        magic, version, *_, count, length = struct.unpack("<5sI32sQQQQ", file.read(73))
        index = file.read(length)
    if magic != b"|TZR|" or version > 4:
        raise Failure(f"{path.name} is no .tensors file of version 1 to 4")
    ranges: list[tuple[int, int]] = []
    position = 0
    for _ in range(count):
        (name,) = struct.unpack_from("<H", index, position)
        position += 2 + name + 1
        position += 1 + index[position]
        position += 1 + 4 * index[position]
        _, offset, size = struct.unpack_from("<QQQ", index, position)
        position += 24
        ranges.append((offset, size))
    return ranges


def build(folder: Path, name: str) -> Path:
    """Compiles one of the bare programs, unless it is newer than its sources."""
    program = folder / name
    source = HERE / f"{name}.cpp"
    newest = max(file.stat().st_mtime for file in (source, HERE / "bare.h"))
    if program.exists() and program.stat().st_mtime >= newest:
        return program
    folder.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CXX", "g++")
    new = program.with_suffix(f".{os.getpid()}")  # others may build it as well
    command = [compiler, *FLAGS, "-o", str(new), str(source), *LIBRARIES[name]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Failure(f"no compiler: {error}") from None
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: {done.stderr.strip().splitlines()[0]}")
    new.rename(program)
    return program


def _seconds(command: Sequence[str], reserve: Reserve, lend: int) -> list[float]:
    """Runs a bare program: what each of its repetitions took."""
    reserve.lend(lend)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    reserve.take_back()
    if done.returncode != 0:
        raise Failure(done.stderr.strip())
    seconds: list[float] = json.loads(done.stdout)["seconds"]
    return seconds


def _write_ranges(file: Path) -> Path:
    """Says beside a .tensors file, in the way that the programs read, where its data is."""
    ranges = file.with_suffix(".ranges")
    ranges.write_text("".join(f"{offset} {size}\n" for offset, size in data_ranges(file)))
    return ranges


class Program:
    """The limit program, built, on one file."""

    def __init__(self, folder: Path, file: Path, threads: int) -> None:
        self._program = build(folder, "limit")
        self._threads = threads
        self.file = file
        self._ranges = _write_ranges(file)
        self._bytes = sum(size for _, size in data_ranges(file))

    def measure(self, limit: Limit, repeats: int, reserve: Reserve) -> Timing:
        command = [
            *(str(self._program), limit.mode, str(self.file), str(self._ranges)),
            *("--threads", str(limit.threads or self._threads)),
            *("--piece", str(limit.piece), "--repeat", str(repeats)),
            *("--output", str(self.file.with_name("limit.out"))),
        ]
        # A write has its source in memory as well.
        lend = self._bytes * (2 if limit.mode.startswith("write") else 1)
        seconds = _seconds(command, reserve, lend)
        typical = statistics.median(seconds[1:] or seconds)
        return Timing(typical, typical, None)


@dataclass(frozen=True)
class BareHttp:
    """Bare libcurl, built; how it speaks with one server."""

    programs: Path
    reserve: Reserve
    options: tuple[str, ...] = ()

    @staticmethod
    def size_of(file: Path) -> int:
        return sum(size for _, size in data_ranges(file))

    def load(self, url: str, file: Path, connections: int) -> Timing:
        """Loads the data of the .tensors file that lies at `url`, and here."""
        where = ("load", url, str(file), str(_write_ranges(file)))
        return self._run(self.size_of(file), where, connections)

    def save(self, url: str, file: Path, connections: int) -> Timing:
        # What is sent, and what the server makes of it.
        return self._run(2 * file.stat().st_size, ("save", url, str(file)), connections)

    def _run(self, lend: int, where: tuple[str, ...], connections: int) -> Timing:
        program = build(self.programs, "bare_http")
        command = (str(program), *where, "--connections", str(connections), *self.options)
        (seconds,) = _seconds(command, self.reserve, lend)
        return Timing(seconds, seconds, None)
