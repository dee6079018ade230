"""Builds and runs the bare programs (`limit`, `bare_http`) and returns their timings."""

from __future__ import annotations

import json
import os
import statistics
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.measure import Timing
from benchmarks.harness.memory import Failure, Reserve

HERE = Path(__file__).parent
FLAGS = ("-std=c++20", "-O2", "-pthread")
LIBRARIES = {"limit": ("-lcrypto", "-ldeflate", "-lsodium"), "bare_http": ("-lcurl",)}
CSRC = HERE.parent.parent / "csrc"
# Files of this library that are compiled into each program.
SOURCES = {"limit": sorted((CSRC / "codec").glob("sha256*.cpp")), "bare_http": []}

KIB = 1 << 10
# The best sizes between 256 KiB and 8 MiB, determined once: choosing in every run would depend on
# chance. For PIECE_ALL, the piece must still be in cache when SHA-256 follows CRC32; for
# PIECE_COLD, large reads suit a disk.
PIECE, PIECE_ALL, PIECE_COLD = 1024 * KIB, 256 * KIB, 2048 * KIB
# The chunk size of the format, which is fixed.
CHUNK = 2048 * KIB


@dataclass(frozen=True)
class Limit:
    """One mode of the limit program."""

    name: str
    mode: str
    threads: int | None = None  # None: one for every CPU that the process may use
    cold: bool = False

    @property
    def hashes(self) -> bool:
        return "-" in self.mode

    @property
    def encrypted(self) -> bool:
        return self.mode.endswith("-encrypted")

    @property
    def reads_encrypted(self) -> bool:
        return self.mode == "read-encrypted"

    @property
    def piece(self) -> int:
        if self.encrypted:
            return CHUNK
        return PIECE_COLD if self.cold else PIECE_ALL if self.mode.endswith("-all") else PIECE


READ = Limit("limit, pread", "read")
READ_CRC32 = Limit("limit, pread + crc32", "read-crc32")
READ_ALL = Limit("bare work, pread + crc32 + libcrypto sha256", "read-all")
WRITE = Limit("limit, pwrite", "write")
WRITE_CRC32 = Limit("limit, pwrite + crc32", "write-crc32")
WRITE_ALL = Limit("bare work, crc32 + libcrypto sha256 + pwrite", "write-all")
READ_LANES = Limit("bare work, pread + sha256 of chunks", "read-lanes")
WRITE_LANES = Limit("bare work, sha256 of chunks + pwrite", "write-lanes")
READ_ENCRYPTED = Limit("bare work, pread + libsodium secretbox", "read-encrypted")
WRITE_ENCRYPTED = Limit(
    "bare work, libcrypto sha256 + libsodium secretbox + pwrite", "write-encrypted"
)
DERIVE_KEY = Limit("bare work, one key from a passphrase", "derive-key")
COLD = tuple(
    Limit(f"cold pread, {threads} at once", "read", threads=threads, cold=True)
    for threads in (2, 8, 32)
)


@dataclass(frozen=True)
class Entry:
    """The offsets and the data size of one tensor in a .tensors file."""

    header: int
    data: int
    size: int


def _behind_name(raw: bytes, position: int) -> int:
    (length,) = struct.unpack_from("<H", raw, position)
    return position + 2 + int(length)


def _behind_shape(raw: bytes, position: int) -> int:
    """`position`: the position of the dtype."""
    position += 1 + raw[position]
    return position + 1 + 4 * raw[position]


def _entries(path: Path) -> list[Entry]:
    """Return the tensors of a .tensors file of version 1 to 4."""
    with path.open("rb") as file:
        magic, version, *_, count, length = struct.unpack("<5sI32sQQQQ", file.read(73))
        index = file.read(length)
    if magic != b"|TZR|" or version > 4:
        raise Failure(f"{path.name} is not a .tensors file of version 1 to 4")
    entries: list[Entry] = []
    position = 0
    for _ in range(count):
        position = _behind_shape(index, _behind_name(index, position) + 1)
        entries.append(Entry(*struct.unpack_from("<QQQ", index, position)))
        position += 24
    return entries


def data_ranges(path: Path) -> list[tuple[int, int]]:
    """Return offset and size of every tensor's data."""
    return [(entry.data, entry.size) for entry in _entries(path)]


def _chunks(path: Path) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Yield offset, size, nonce and MAC of every chunk of a file that tensorizer_ops encrypted."""
    with path.open("rb") as file:
        for entry in _entries(path):
            file.seek(entry.header)
            header = file.read(entry.data - entry.header)
            position = _behind_shape(header, _behind_name(header, 8 + 2 + 1))
            position += 2 + struct.unpack_from("<H", header, position)[0]  # the hashes
            (kinds,) = struct.unpack_from("<H", header, position + 8)
            position += 8 + 2
            for _ in range(kinds):
                length, kind = struct.unpack_from("<QH", header, position)
                if kind == 2:
                    step, first, count = struct.unpack_from("<Q24sQ", header, position + 10)
                    macs = header[position + 50 : position + 50 + 16 * count]
                position += 8 + length
            for i in range(count):
                nonce = (int.from_bytes(first, "little") + i) % (1 << 8 * len(first))
                yield (
                    entry.data + i * step,
                    min(step, entry.size - i * step),
                    nonce.to_bytes(len(first), "little"),
                    macs[16 * i : 16 * (i + 1)],
                )


def build(folder: Path, name: str) -> Path:
    """Compile one of the bare programs, unless it is newer than its sources."""
    program = folder / name
    source = HERE / f"{name}.cpp"
    sources = [source, *SOURCES[name]]
    newest = max(file.stat().st_mtime for file in (*sources, HERE / "bare.h"))
    if program.exists() and program.stat().st_mtime >= newest:
        return program
    folder.mkdir(parents=True, exist_ok=True)
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
        raise Failure(done.stderr.strip())
    seconds: list[float] = json.loads(done.stdout)["seconds"]
    return seconds


def _write_ranges(file: Path) -> Path:
    """Write the ranges of a .tensors file's data beside it, in the format of bare.h."""
    ranges = file.with_suffix(".ranges")
    ranges.write_text("".join(f"{offset} {size}\n" for offset, size in data_ranges(file)))
    return ranges


def _write_chunks(file: Path) -> Path:
    """Write the ranges, nonces and MACs of an encrypted file's chunks beside it, for limit.cpp."""
    chunks = file.with_suffix(".chunks")
    lines = (f"{at} {size} {nonce.hex()} {mac.hex()}\n" for at, size, nonce, mac in _chunks(file))
    chunks.write_text("".join(lines))
    return chunks


class Program:
    """The built limit program for one file. `key` is the key of an encrypted file."""

    def __init__(self, folder: Path, file: Path, threads: int, key: bytes = b"") -> None:
        self._program = build(folder, "limit")
        self._threads = threads
        self.file = file
        self._ranges = _write_chunks(file) if key else _write_ranges(file)
        self._key = ("--key", key.hex()) if key else ()
        self.bytes = sum(size for _, size in data_ranges(file))

    def measure(self, limit: Limit, repeats: int, reserve: Reserve) -> Timing:
        command = [
            *(str(self._program), limit.mode, str(self.file), str(self._ranges)),
            *("--threads", str(limit.threads or self._threads)),
            *("--piece", str(limit.piece), "--repeat", str(repeats)),
            *("--output", str(self.file.with_name("limit.out"))),
            *self._key,
        ]
        # A write also needs memory for its source.
        lend = self.bytes * (2 if limit.mode.startswith("write") else 1)
        seconds = _seconds(command, reserve, lend)
        typical = statistics.median(seconds[1:] or seconds)
        return Timing(typical, typical, None)


@dataclass(frozen=True)
class BareHttp:
    """The bare_http program with its options for one server."""

    programs: Path
    reserve: Reserve
    options: tuple[str, ...] = ()

    @staticmethod
    def size_of(file: Path) -> int:
        return sum(size for _, size in data_ranges(file))

    def load(self, url: str, file: Path, connections: int) -> Timing:
        """Load the data of the .tensors file at `url`; `file` is a local copy of it."""
        where = ("load", url, str(file), str(_write_ranges(file)))
        return self._run(self.size_of(file), where, connections)

    def save(self, url: str, file: Path, connections: int) -> Timing:
        # Memory for the data to send, and for the file that the server writes.
        return self._run(2 * file.stat().st_size, ("save", url, str(file)), connections)

    def _run(self, lend: int, where: tuple[str, ...], connections: int) -> Timing:
        program = build(self.programs, "bare_http")
        command = (str(program), *where, "--connections", str(connections), *self.options)
        (seconds,) = _seconds(command, self.reserve, lend)
        return Timing(seconds, seconds, None)
