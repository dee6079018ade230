"""What this project promises about speed and memory, and whether a run bears it out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import bare

When = Literal["warm", "cold"]

COPY = "us, copy"
COMPANION = "us, copy, the 32 MiB case"
MEMORY_CEILING = 64 << 20
IMPORT_CEILING = 0.060


@dataclass
class Row:
    """Everything measured of one peer on one workload."""

    bytes: int
    choice: str = ""
    error: str = ""
    # One entry per try, None where it failed. Seconds until the values were in memory, and until
    # the call returned.
    ready: dict[When, list[float | None]] = field(default_factory=lambda: {"warm": [], "cold": []})
    call: dict[When, list[float | None]] = field(default_factory=lambda: {"warm": [], "cold": []})
    memory: int | None = None


Rows = dict[str, Row]


@dataclass(frozen=True)
class Target:
    """`mine` is at least `factor` times as fast as `other`, in bytes per second."""

    work: str
    mine: str
    against: str
    other: tuple[str, ...]  # of these, the fastest
    factor: float
    workloads: tuple[str, ...]
    when: When = "warm"


_MODELS = ("large", "transformer")
_CRC32 = "us, copy, verify crc32"
_ALL = "us, copy, verify all"
_SAVE = "us, save hashes=all"
_BARE = "bare libcrypto work"
_COLD = tuple(limit.name for limit in bare.COLD)

TARGETS = (
    Target("load by copy", COPY, "limit", (bare.READ.name,), 0.9, _MODELS),
    Target("load by copy", COPY, "tensorizer", ("tensorizer",), 2.5, _MODELS),
    Target("load by copy", COPY, "torch.load", ("torch.load",), 4, _MODELS),
    Target("load zero-copy, touch", "us, zero-copy", "safetensors", ("safetensors",), 1.0, _MODELS),
    Target("load, verify all", _ALL, _BARE, (bare.READ_ALL.name,), 1.35, _MODELS),
    Target("load, verify all", _ALL, "tensorizer", ("tensorizer, verify_hash",), 2.2, _MODELS),
    Target("load, verify crc32", _CRC32, "limit", (bare.READ_CRC32.name,), 0.9, _MODELS),
    Target("cold load by copy", COPY, "best cold pread", _COLD, 0.9, _MODELS, when="cold"),
    Target("save, both hashes", _SAVE, _BARE, (bare.WRITE_ALL.name,), 1.25, _MODELS),
    Target("save, both hashes", _SAVE, "tensorizer", ("tensorizer, save",), 2, _MODELS),
    Target("save, both hashes", _SAVE, "torch.save", ("torch.save",), 1.7, _MODELS),
    Target("save, crc32", "us, save hashes=crc32", "limit", (bare.WRITE_CRC32.name,), 0.9, _MODELS),
    Target("small tensors, load", "us, zero-copy", "safetensors", ("safetensors",), 5, ("small",)),
    Target("small tensors, save", _SAVE, "safetensors", ("safetensors, save",), 3, ("small",)),
    Target("one tensor, load by copy", COPY, "the 32 MiB case", (COMPANION,), 0.9, ("single",)),
)


@dataclass(frozen=True)
class Verdict:
    work: str
    workload: str
    against: str
    required: str
    measured: str
    met: bool | None  # None: not measured


def _ratio(target: Target, rows: Rows) -> float | None:
    """Best against best: other work on the machine can only make a round slower."""

    def best(name: str) -> float | None:
        row = rows.get(name)
        seconds = [value for value in row.ready[target.when] if value] if row else []
        return row.bytes / min(seconds) if row and seconds else None

    mine = best(target.mine)
    others = [speed for name in target.other if (speed := best(name))]
    return mine / max(others) if mine and others else None


def _verdict(
    work: str, workload: str, against: str, required: str, measured: str, met: bool | None
) -> Verdict:
    return Verdict(work, workload, against, required, measured if met is not None else "-", met)


def judge(results: dict[str, Rows], import_seconds: float | None) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for target in TARGETS:
        for workload in target.workloads:
            ratio = _ratio(target, results.get(workload, {}))
            measured, met = (f"{ratio:.2f} x", ratio >= target.factor) if ratio else ("", None)
            required = f"{target.factor:g} x"
            verdicts.append(
                _verdict(target.work, workload, target.against, required, measured, met)
            )
    for workload, rows in results.items():
        peaks = [
            row.memory
            for name, row in rows.items()
            if name.startswith("us, ") and row.memory is not None
        ]
        measured = f"{max(peaks) / (1 << 20):.0f} MiB" if peaks else ""
        met = max(peaks) <= MEMORY_CEILING if peaks else None
        verdicts.append(
            _verdict("memory beyond the tensors", workload, "", "64 MiB at most", measured, met)
        )
    measured = f"{import_seconds * 1000:.0f} ms" if import_seconds is not None else ""
    met = import_seconds <= IMPORT_CEILING if import_seconds is not None else None
    verdicts.append(_verdict("import beyond torch", "", "", "60 ms at most", measured, met))
    return verdicts
