"""Compares the measured results with the targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

When = Literal["warm", "cold"]


@dataclass
class Row:
    """All results of one peer on one workload."""

    bytes: int
    choice: str = ""
    error: str = ""
    # Seconds until the values were in memory (`ready`) and until the call returned (`call`). One
    # entry per try, None if it failed.
    ready: dict[When, list[float | None]] = field(default_factory=lambda: {"warm": [], "cold": []})
    call: dict[When, list[float | None]] = field(default_factory=lambda: {"warm": [], "cold": []})
    memory: int | None = None
    # The fewest sequential requests of a load, if they were counted. The minimum, because on a busy
    # machine a request that starts late looks as if it had waited for a response.
    rounds: int | None = None


Rows = dict[str, Row]


@dataclass(frozen=True)
class Target:
    """The target that `mine` is at least `factor` times as fast as `other`, in bytes per second."""

    work: str
    mine: str
    against: str
    other: tuple[str, ...]  # the fastest of these counts
    factor: float
    workloads: tuple[str, ...]
    when: When = "warm"


@dataclass(frozen=True)
class Verdict:
    work: str
    workload: str
    against: str
    required: str
    measured: str
    met: bool | None  # None: not measured


def best_seconds(rows: Rows, name: str, when: When = "warm") -> float | None:
    """Return the fastest round, as other work on the machine can only make a round slower."""
    row = rows.get(name)
    return min((value for value in row.ready[when] if value), default=None) if row else None


def _ratio(target: Target, rows: Rows) -> float | None:
    """Return how many times as fast ours is, best round against best round."""

    def best(name: str) -> float | None:
        seconds = best_seconds(rows, name, target.when)
        return rows[name].bytes / seconds if seconds else None

    mine = best(target.mine)
    others = [speed for name in target.other if (speed := best(name))]
    return mine / max(others) if mine and others else None


def judge_speeds(targets: Iterable[Target], results: dict[str, Rows]) -> list[Verdict]:
    verdicts = []
    for target in targets:
        for workload in target.workloads:
            ratio = _ratio(target, results.get(workload, {}))
            measured, met = (f"{ratio:.2f} x", ratio >= target.factor) if ratio else ("-", None)
            required = f"{target.factor:g} x"
            verdicts.append(Verdict(target.work, workload, target.against, required, measured, met))
    return verdicts


def at_most(
    work: str, workload: str, ceiling: float, value: float | None, unit: str, digits: int = 0
) -> Verdict:
    measured = f"{value:.{digits}f} {unit}" if value is not None else "-"
    met = value <= ceiling if value is not None else None
    return Verdict(work, workload, "", f"{ceiling:g} {unit} at most", measured, met)


def judge_memory(
    workload: str, rows: Rows, ceiling: int, work: str = "memory beyond the tensors"
) -> Verdict:
    """Compare the highest peak of memory beyond the tensors, of all our rows, with a ceiling."""
    ours = [row.memory for name, row in rows.items() if name.startswith("us, ")]
    peaks = [memory / (1 << 20) for memory in ours if memory is not None]
    peak = max(peaks) if peaks else None
    return at_most(work, workload, ceiling >> 20, peak, "MiB")
