"""``bench``: how fast a file loads on this machine, beside a read of the same bytes alone."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from tensorizer_ops import _core
from tensorizer_ops._base.options import Options, as_pairs
from tensorizer_ops._base.progress import reported
from tensorizer_ops._base.tables import Table, size_text
from tensorizer_ops._base.targets import local_path
from tensorizer_ops._cli.options import reading, refuse_stream
from tensorizer_ops._cli.output import bar, bold, note
from tensorizer_ops._cli.parsers import UsageError
from tensorizer_ops._front.inspection import File

_PIECE = 8 << 20
# Below this, starting threads and opening the file take a good part of the time.
_TOO_SMALL = 1 << 20
# Parts of the time that Reader.stats() reports, and their names in the table.
_PARTS = {
    "verify": "hashing",
    "decrypt": "decrypting",
    "copy": "copying",
    "lookup": "DNS",
    "connect": "connecting",
    "tls": "TLS",
    "first_byte": "waiting for responses",
    "transfer": "receiving",
}

Stats = dict[str, float]


def bench(given: Namespace) -> int:
    refuse_stream(given.uri, "bench reads it several times")
    options = reading(given)
    path = local_path(given.uri)
    if path is not None and not os.path.isdir(path) and not os.path.isfile(path):
        path = None  # a missing file, whose error is that of the library, or a stream
    files = [] if path is None else _files(Path(path))
    if given.cold and not files:
        raise UsageError("--cold is for files on this machine")
    threads = given.threads or _core.usable_cpus()
    file = File(given.uri, options)

    measured: dict[str, Stats] = {}

    def measure(name: str, what: Callable[[], Stats]) -> None:
        note(given.quiet or not sys.stderr.isatty(), f"{name} ...")
        if given.cold:
            _drop_from_cache(files)
        measured[name] = what()

    measure("bare read", lambda: _read_files(files, threads) if files else _read(given, options))
    measure("load", lambda: _load(given, options, "none"))
    if file.kinds_of_hashes():
        measure("verified load", lambda: _load(given, options, "all"))
    advice = advise(measured, threads, path is None, bool(file.digest_chunk()))
    advice += explain_order(measured)
    if given.json:
        print(json.dumps({"threads": threads, "measured": measured, "advice": advice}))
        return 0
    _print(measured)
    print(f"\n{advice}")
    return 0


def _files(path: Path) -> list[Path]:
    """Return the files of a model: one, or all shards of a folder or an index."""
    folder = path if path.is_dir() else path.parent
    if path.is_dir() or path.name.endswith(".index.json"):
        return sorted(folder.glob("*.safetensors"))
    return [path]


def _drop_from_cache(files: list[Path]) -> None:
    for path in files:
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # pages that are not written yet stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_files(files: list[Path], threads: int) -> Stats:
    """Read local files with threads, into memory that is used again."""

    own = threading.local()

    def begin_thread() -> None:
        own.buffer = bytearray(_PIECE)

    def read(part: tuple[Path, int]) -> int:
        with open(part[0], "rb", buffering=0) as file:
            file.seek(part[1])
            return file.readinto(own.buffer) or 0

    parts = [(path, at) for path in files for at in range(0, path.stat().st_size, _PIECE)]
    begin = time.perf_counter()
    with ThreadPoolExecutor(threads, initializer=begin_thread) as pool:
        done = sum(pool.map(read, parts))
    return {"bytes": done, "seconds": time.perf_counter() - begin}


def _read(given: Namespace, options: Options) -> Stats:
    """Read a file on a server from begin to end, one request after another."""
    begin = time.perf_counter()
    source = _core.RemoteBytes(given.uri, as_pairs(options), 0, None, _PIECE)
    buffer = bytearray(_PIECE)
    done = 0
    while count := source.read_into(done, buffer):
        done += count
    return {"bytes": done, "seconds": time.perf_counter() - begin}


def _load(given: Namespace, options: Options, verify: str) -> Stats:
    reader = torch.classes.tensorizer.Reader(given.uri, options)
    with reported(reader, bar(given.quiet, given.uri)):
        reader.load(None, None, None, verify, True, given.threads)
    stats: Stats = dict(reader.stats())
    return stats


def advise(measured: dict[str, Stats], threads: int, remote: bool, chunked: bool) -> str:
    """Return one sentence on what would make loads of this file faster."""
    load = measured["load"]
    if load["bytes"] < _TOO_SMALL:
        return "The file is too small for its time to say much."
    if remote and load["first_byte"] > load["transfer"]:
        return (
            "Most of the time is waiting for the server: raise the option connections, or "
            "chunk_size."
        )
    if load["decrypt"] > 0.5 * threads * load["seconds"]:
        return "Decrypting takes most of the time: more CPUs make it faster."
    verified = measured.get("verified load")
    if verified is None:
        return "The file has no hashes to verify: save it with hashes, such as chunked."
    if verified["seconds"] > 1.5 * load["seconds"]:
        if not chunked:
            return (
                "Verifying costs much: hashes of chunks (copy --hashes chunked) let every CPU "
                "verify one large tensor."
            )
        return "Verifying costs much: more CPUs make it faster."
    bare = measured["bare read"]
    if load["bytes"] / load["seconds"] > 0.8 * bare["bytes"] / bare["seconds"]:
        return "Loads are about as fast as this machine reads the bytes."
    if remote:
        return "The network limits it: more connections help if the server limits each one."
    return (
        "Memory for the tensors takes the rest of the time: a load without copy=True maps the "
        "file instead."
    )


def explain_order(measured: dict[str, Stats]) -> str:
    """Return why a verified load was faster than one that was not; empty if it was not."""
    verified = measured.get("verified load")
    if verified is None or verified["seconds"] >= measured["load"]["seconds"]:
        return ""
    return (
        " The verified load was the faster one because it came second: it used memory and "
        "connections of the first one again."
    )


def _print(measured: dict[str, Stats]) -> None:
    rows = [
        (
            name,
            size_text(int(stats["bytes"])),
            f"{stats['seconds']:.3f} s",
            f"{stats['bytes'] / max(stats['seconds'], 1e-9) / 1e9:.2f} GB/s",
        )
        for name, stats in measured.items()
    ]
    print(*Table(("", "bytes", "time", "speed"), rows, (1, 2, 3)).lines(bold), sep="\n")
    for name, stats in measured.items():
        parts = [
            f"{what} {stats[part]:.3f} s" for part, what in _PARTS.items() if stats.get(part, 0) > 0
        ]
        if parts:
            print(f"\n{name}, summed over threads: {', '.join(parts)}")
