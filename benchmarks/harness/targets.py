"""The performance targets for loads and saves."""

from __future__ import annotations

from benchmarks.bare import programs as bare
from benchmarks.harness.verdicts import (
    Rows,
    Target,
    Verdict,
    at_most,
    best_seconds,
    judge_memory,
    judge_speeds,
)

COPY = "us, copy"
COMPANION = "us, copy, the 32 MiB case"
MEMORY_CEILING = 64 << 20
ENCRYPTED_MEMORY_CEILING = 128 << 20
REMOTE_MEMORY_CEILING = 128 << 20
DERIVATIONS_CEILING = 1.5
IMPORT_CEILING_MS = 60
ROUNDS_CEILING = 2

_MODELS = ("large", "transformer")
_CRC32 = "us, copy, verify crc32"
_ALL = "us, copy, verify all"
_FOREIGN_COPY = "us, safetensors, copy"
_ENCRYPTED = "us, encrypted"
_SAVE = "us, save hashes=all"
_SAVE_ENCRYPTED = "us, save encrypted"
_BARE = "bare libcrypto work"
_BARE_SODIUM = "bare libsodium work"
_COLD = tuple(limit.name for limit in bare.COLD)

TARGETS = (
    Target("load by copy", COPY, "limit", (bare.READ.name,), 0.9, _MODELS),
    Target("load by copy", COPY, "tensorizer", ("tensorizer",), 2.5, _MODELS),
    Target("load by copy", COPY, "torch.load", ("torch.load",), 4, _MODELS),
    Target("load zero-copy, touch", "us, zero-copy", "safetensors", ("safetensors",), 1.0, _MODELS),
    Target("load safetensors by copy", _FOREIGN_COPY, "limit", (bare.READ.name,), 0.9, _MODELS),
    Target(
        "load safetensors by copy",
        *(_FOREIGN_COPY, "fastsafetensors", ("fastsafetensors",), 2, _MODELS),
    ),
    Target(
        "load safetensors zero-copy, touch",
        *("us, safetensors, zero-copy", "safetensors", ("safetensors",), 0.95, _MODELS),
    ),
    Target("load, verify all", _ALL, _BARE, (bare.READ_ALL.name,), 1.35, _MODELS),
    Target("load, verify all", _ALL, "tensorizer", ("tensorizer, verify_hash",), 2.2, _MODELS),
    Target("load, verify crc32", _CRC32, "limit", (bare.READ_CRC32.name,), 0.9, _MODELS),
    Target("cold load by copy", COPY, "best cold pread", _COLD, 0.9, _MODELS, when="cold"),
    Target("save, both hashes", _SAVE, _BARE, (bare.WRITE_ALL.name,), 1.25, _MODELS),
    Target("save, both hashes", _SAVE, "tensorizer", ("tensorizer, save",), 2, _MODELS),
    Target("save, both hashes", _SAVE, "torch.save", ("torch.save",), 1.7, _MODELS),
    Target("save, crc32", "us, save hashes=crc32", "limit", (bare.WRITE_CRC32.name,), 0.9, _MODELS),
    Target("load, encrypted", _ENCRYPTED, _BARE_SODIUM, (bare.READ_ENCRYPTED.name,), 1.05, _MODELS),
    Target("load, encrypted", _ENCRYPTED, "tensorizer", ("tensorizer, encrypted",), 1.5, _MODELS),
    Target(
        "save, encrypted",
        *(_SAVE_ENCRYPTED, _BARE_SODIUM, (bare.WRITE_ENCRYPTED.name,), 1.2, _MODELS),
    ),
    Target(
        "save, encrypted",
        *(_SAVE_ENCRYPTED, "tensorizer", ("tensorizer, save encrypted",), 2.2, _MODELS),
    ),
    Target("small tensors, load", "us, zero-copy", "safetensors", ("safetensors",), 5, ("small",)),
    Target("small tensors, save", _SAVE, "safetensors", ("safetensors, save",), 3, ("small",)),
    Target("one tensor, load by copy", COPY, "the 32 MiB case", (COMPANION,), 0.9, ("single",)),
)

BYTES_PER_SECOND = 40_000_000  # per connection of a slow server
SLOW_CONNECTIONS = (8, 16, 32)

_LOAD = "us, load"
_SAVED = "us, save"
_BARE_LOAD = ("bare libcurl, load",)
_BARE_SAVE = ("bare libcurl, save",)
_TENSORIZER = ("tensorizer, load",)
_STREAMER = ("Run:ai streamer, load",)
_UPLOAD = ("a file, then boto3 upload_file",)
_FOREIGN = "us, load safetensors"
_DOWNLOAD = ("download, then safetensors",)
_KEYS = "key after key"
_ONE_TENSOR = f"us, {SLOW_CONNECTIONS[-1]} connections, one tensor"
_MANY_TENSORS = (f"us, {SLOW_CONNECTIONS[-1]} connections",)


def _slow(connections: int) -> Target:
    mine = f"us, {connections} connections"
    pace = f"{connections} x 40 MB/s"
    return Target(f"load over {connections}", mine, pace, (pace,), 0.9, ("slow",))


REMOTE_TARGETS = (
    Target("load", _LOAD, "bare libcurl", _BARE_LOAD, 0.9, ("http",)),
    Target("load", _LOAD, "tensorizer", _TENSORIZER, 2.1, ("http",)),
    Target("load safetensors", _FOREIGN, "download first", _DOWNLOAD, 2, ("http",)),
    Target("load", _LOAD, "bare libcurl", _BARE_LOAD, 0.9, ("https",)),
    Target("load", _LOAD, "tensorizer", _TENSORIZER, 2, ("https",)),
    *(_slow(connections) for connections in SLOW_CONNECTIONS),
    Target(_KEYS, f"us, {_KEYS}", "tensorizer", (f"tensorizer, {_KEYS}",), 2, ("lazy",)),
    Target("load of one tensor", _ONE_TENSOR, "the 32 MiB case", _MANY_TENSORS, 0.95, ("slow",)),
    Target("load", _LOAD, "bare libcurl", _BARE_LOAD, 0.9, ("s3",)),
    Target("load", _LOAD, "Run:ai streamer", _STREAMER, 1.1, ("s3",)),
    Target("load safetensors", _FOREIGN, "Run:ai streamer", _STREAMER, 1.2, ("s3",)),
    Target("load", _LOAD, "boto3", ("boto3 download_file",), 1.3, ("s3",)),
    Target("save, both hashes", _SAVED, "bare libcurl", _BARE_SAVE, 0.9, ("s3",)),
    Target("save, both hashes", _SAVED, "file, boto3", _UPLOAD, 1.3, ("s3",)),
    Target("load", _LOAD, "tensorizer", _TENSORIZER, 2, ("redis",)),
    Target("save, both hashes", _SAVED, "tensorizer", ("tensorizer, save",), 2, ("redis",)),
)


_INTO_MODULE = "us, load_into_module"
_BUFFER = "us, load from a BytesIO"
SMALL_BYTES = 1024
PYTHON_CEILING_US = 2  # per small tensor, beyond the op and nn.Parameter

CLASSIC_TARGETS = tuple(
    Target(mine.removeprefix("us, "), mine, "tensorizer", (mine.replace("us", "tensorizer"),), *how)
    for mine, *how in (
        (_LOAD, 2.5, ("transformer",)),
        (_SAVED, 2, ("transformer",)),
        (_INTO_MODULE, 2.5, ("transformer",)),
        (_BUFFER, 2, ("transformer",)),
        (_LOAD, 10, ("small",)),
        (_SAVED, 10, ("small",)),
    )
)


def _derivations(results: dict[str, Rows]) -> float | None:
    """Return the cost of a passphrase compared with a key, in units of one key derivation."""
    rows = results.get("small", {})
    derived = best_seconds(rows, "us, encrypted, passphrase")
    keyed = best_seconds(rows, _ENCRYPTED)
    once = best_seconds(rows, bare.DERIVE_KEY.name)
    return (derived - keyed) / once if derived and keyed and once else None


def judge(results: dict[str, Rows], import_seconds: float | None) -> list[Verdict]:
    imported = import_seconds * 1000 if import_seconds is not None else None
    plain: dict[str, Rows] = {}
    encrypted: dict[str, Rows] = {}
    for workload, rows in results.items():
        plain[workload] = {n: row for n, row in rows.items() if "encrypted" not in n}
        encrypted[workload] = {n: row for n, row in rows.items() if "encrypted" in n}
    derivations = _derivations(results)
    return [
        *judge_speeds(TARGETS, results),
        *(judge_memory(workload, rows, MEMORY_CEILING) for workload, rows in plain.items()),
        *(
            judge_memory(workload, rows, ENCRYPTED_MEMORY_CEILING, "the same, encrypted")
            for workload, rows in encrypted.items()
            if rows
        ),
        at_most("derivations", "small", DERIVATIONS_CEILING, derivations, "x", digits=2),
        at_most("import beyond torch", "", IMPORT_CEILING_MS, imported, "ms"),
    ]


def judge_remote(results: dict[str, Rows]) -> list[Verdict]:
    far = results.get("far", {}).values()
    rounds = max((row.rounds for row in far if row.rounds is not None), default=None)
    return [
        *judge_speeds(REMOTE_TARGETS, results),
        at_most("requests in a row", "far", ROUNDS_CEILING, rounds, "rounds"),
        *(judge_memory(name, rows, REMOTE_MEMORY_CEILING) for name, rows in results.items()),
    ]


def judge_classic(results: dict[str, Rows]) -> list[Verdict]:
    rows = results.get("small", {})
    whole = best_seconds(rows, _LOAD)
    least = best_seconds(rows, "us, op and nn.Parameter")
    python = None
    if whole and least:
        python = (whole - least) / (rows[_LOAD].bytes / SMALL_BYTES) * 1e6
    return [
        *judge_speeds(CLASSIC_TARGETS, results),
        at_most("Python's part of a load", "small", PYTHON_CEILING_US, python, "us", digits=2),
    ]
