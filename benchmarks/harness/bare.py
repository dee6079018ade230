"""Builds and runs the bare programs (`limit`, `bare_http`, `changes`) and returns their timings."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorizer_ops
from benchmarks.harness.measure import Timing, typical
from benchmarks.harness.memory import Failure, Reserve
from benchmarks.harness.results import ROOT, THREADS

HERE = ROOT / "benchmarks" / "bare"
PROGRAMS = ROOT / "build"
FLAGS = ("-std=c++20", "-O2", "-pthread")
LIBRARIES = {"limit": ("-lcrypto", "-ldeflate"), "bare_http": ("-lcurl",), "changes": ()}
CSRC = ROOT / "csrc"
# Files of this library that are compiled into each program.
SOURCES = {
    "limit": sorted((CSRC / "codec").glob("sha256*.cpp")),
    "bare_http": [],
    "changes": sorted((CSRC / "codec").glob("changes*.cpp")),
}

KIB = 1 << 10
# The best sizes between 256 KiB and 8 MiB, determined once: choosing in every run would depend on
# chance. For PIECE_ALL, the piece must still be in cache when SHA-256 follows CRC32; for
# PIECE_COLD, large reads suit a disk.
PIECE, PIECE_ALL, PIECE_COLD = 1024 * KIB, 256 * KIB, 2048 * KIB


@dataclass(frozen=True)
class Limit:
    """One mode of the limit program."""

    name: str
    mode: str
    piece: int = PIECE
    threads: int = THREADS
    cold: bool = False

    @property
    def writes(self) -> bool:
        return self.mode.startswith("write")


READ = Limit("limit, pread", "read")
READ_CRC32 = Limit("limit, pread + crc32", "read-crc32")
READ_ALL = Limit("bare work, pread + crc32 + libcrypto sha256", "read-all", PIECE_ALL)
WRITE = Limit("limit, pwrite", "write")
WRITE_CRC32 = Limit("limit, pwrite + crc32", "write-crc32")
WRITE_ALL = Limit("bare work, crc32 + libcrypto sha256 + pwrite", "write-all", PIECE_ALL)
READ_LANES = Limit("bare work, pread + sha256 of chunks", "read-lanes")
WRITE_LANES = Limit("bare work, sha256 of chunks + pwrite", "write-lanes")
COLD = tuple(
    Limit(f"cold pread, {threads} at once", "read", PIECE_COLD, threads, cold=True)
    for threads in (2, 8, 32)
)


def data_ranges(path: Path) -> list[tuple[int, int]]:
    """Return offset and size of every tensor's data in a .tensors file."""
    with tensorizer_ops.Reader(path) as reader:
        stored = map(reader.stored, reader)
        return [(int(one["data_offset"]), int(one["data_size"])) for one in stored]


def data_size(path: Path) -> int:
    return sum(size for _, size in data_ranges(path))


def _build(name: str) -> Path:
    """Compile one of the bare programs, unless it is newer than its sources."""
    program = PROGRAMS / name
    source = HERE / f"{name}.cpp"
    sources = [source, *SOURCES[name]]
    newest = max(file.stat().st_mtime for file in (*sources, HERE / "bare.h"))
    if program.exists() and program.stat().st_mtime >= newest:
        return program
    PROGRAMS.mkdir(exist_ok=True)
    compiler = os.environ.get("CXX", "g++")
    new = program.with_suffix(f".{os.getpid()}")  # another process may build it at the same time
    command = [compiler, *FLAGS, f"-I{CSRC}", "-o", str(new), *map(str, sources), *LIBRARIES[name]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Failure(f"no compiler: {error}") from None
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: {done.stderr.strip().splitlines()[0]}")
    new.rename(program)
    return program


def _seconds(command: Sequence[str], reserve: Reserve, lend: int) -> list[float]:
    """Run a bare program and return the seconds of each of its repetitions."""
    reserve.lend(lend)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    reserve.take_back()
    if done.returncode != 0:
        raise Failure(done.stderr.strip().rpartition("\n")[2].strip())
    return [float(line) for line in done.stdout.split()]


def _write_ranges(file: Path, ranges: Sequence[tuple[int, int]]) -> str:
    """Write ranges of a file beside it, in the format of bare.h."""
    path = file.with_suffix(".ranges")
    path.write_text("".join(f"{offset} {size}\n" for offset, size in ranges))
    return str(path)


def run_limit(
    limit: Limit,
    file: Path,
    reserve: Reserve,
    repeats: int = 1,
    ranges: Sequence[tuple[int, int]] = (),
) -> Timing:
    """Run the limit program with ranges of a file, by default the data of its tensors."""
    ranges = ranges or data_ranges(file)
    command = [
        *(str(_build("limit")), limit.mode, str(file), _write_ranges(file, ranges)),
        *(str(file.with_name("limit.out")), *map(str, (limit.threads, limit.piece, repeats))),
    ]
    # A write also needs memory for its source.
    lend = sum(size for _, size in ranges) * (2 if limit.writes else 1)
    seconds = typical(_seconds(command, reserve, lend))
    return Timing(seconds, seconds, None)


def run_http(
    url: str, file: Path, reserve: Reserve, connections: int, ca: str = "", user: str = ""
) -> Timing:
    """Load the data of the .tensors file at `url`, of which `file` is a copy."""
    ranges = _write_ranges(file, data_ranges(file))
    command = [str(_build("bare_http")), url, str(file), ranges, str(connections), ca, user]
    (seconds,) = _seconds(command, reserve, data_size(file))
    return Timing(seconds, seconds, None)


def run_changes(kind: tuple[int, bool], base: Path, new: Path, repeats: int) -> tuple[float, ...]:
    """Return the bytes of the codes of two files of raw elements, and the seconds of both ways."""
    size, floating = kind
    command = [str(_build("changes")), str(size), str(int(floating)), base, new, str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure("the code of changes does not give back what it was made from")
    return tuple(map(float, done.stdout.split()))
