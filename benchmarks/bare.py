"""The limit program as one more thing to measure: its modes, where data lies, its figures."""

from __future__ import annotations

import json
import os
import statistics
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from measure import Timing
from memory import Failure, Reserve

SOURCE = Path(__file__).with_name("limit.cpp")
FLAGS = ("-std=c++20", "-O2", "-pthread")
LIBRARIES = ("-lcrypto", "-ldeflate")

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


def build(program: Path) -> None:
    """Compiles the limit program, unless it is newer than its source."""
    if program.exists() and program.stat().st_mtime >= SOURCE.stat().st_mtime:
        return
    program.parent.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, *FLAGS, "-o", str(program), str(SOURCE), *LIBRARIES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Failure(f"no compiler: {error}") from None
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: {done.stderr.strip().splitlines()[0]}")


class Program:
    """The limit program, built, on one file."""

    def __init__(self, program: Path, file: Path, threads: int) -> None:
        build(program)
        self._program = program
        self._threads = threads
        self.file = file
        self._ranges = file.with_name("ranges.txt")
        ranges = data_ranges(file)
        self._ranges.write_text("".join(f"{offset} {size}\n" for offset, size in ranges))
        self._bytes = sum(size for _, size in ranges)

    def measure(self, limit: Limit, repeats: int, reserve: Reserve) -> Timing:
        command = [
            *(str(self._program), limit.mode, str(self.file), str(self._ranges)),
            *("--threads", str(limit.threads or self._threads)),
            *("--piece", str(limit.piece), "--repeat", str(repeats)),
            *("--output", str(self.file.with_name("limit.out"))),
        ]
        # A write has its source in memory as well.
        reserve.lend(self._bytes * (2 if limit.mode.startswith("write") else 1))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        reserve.take_back()
        if done.returncode != 0:
            raise Failure(done.stderr.strip())
        seconds = json.loads(done.stdout)["seconds"]
        typical = statistics.median(seconds[1:] or seconds)
        return Timing(typical, typical, None)
