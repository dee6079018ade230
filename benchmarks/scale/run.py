"""Simulates clusters of 1 to 1,000 nodes that load one model from one store.

    python -m benchmarks.scale.run [--quick] [--seeds 100] [--json FILE]

Prints, for each way to load, the time until all nodes are ready (the median of the seeds) and what
a start costs. The model is in strategies.py and its assumptions are in cluster.py. What this
machine can measure comes from the newest results of calibrate.py and benchmarks/local/slices.py.

A seed always gives the same result.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.harness.results import Found, Run, measured, quantile, read_runs
from benchmarks.harness.tables import table
from benchmarks.scale.cluster import HTTP, MIB, S3, Cluster, assumptions
from benchmarks.scale.strategies import Outcome, gather, read_all

NODES = (1, 4, 16, 64, 256, 1000)
STORES = {"S3": S3, "one HTTP server": HTTP}
FEW = 3  # seeds of a smoke test
STAGING = 256 * MIB
Strategy = Callable[[Cluster, int, Random], Outcome]
US = "tensorizer_ops, gather"
STRATEGIES: dict[str, Strategy] = {
    "every rank reads all": lambda cluster, nodes, random: read_all(
        cluster, nodes, random, cluster.gpus
    ),
    "every rank reads its slices": lambda cluster, nodes, random: read_all(
        cluster, nodes, random, cluster.received
    ),
    US: gather,
    f"{US}, staging 256 MiB": lambda cluster, nodes, random: gather(
        replace(cluster, staging=STAGING), nodes, random
    ),
}


def measured_here(recorded: Sequence[Run]) -> dict[str, Any]:
    """Return the values of a cluster that benchmarks have measured, from runs, the newest first."""
    found = {run.kind: run.found for run in reversed(recorded)}
    values = {}
    if calibration := found.get("calibration"):
        values["round_trips"] = max(statistics.median(calibration["round trips"]), 1.0)
    if slices := found.get("slices"):
        values["received"] = slices["far, received against needed"]
    return values


def simulate(cluster: Cluster, strategy: str, nodes: int, seeds: int) -> dict[str, float]:
    outcomes = [
        STRATEGIES[strategy](cluster, nodes, Random(f"{strategy} {nodes} {seed}"))
        for seed in range(seeds)
    ]
    seconds = [outcome.seconds for outcome in outcomes]
    middle = quantile(seconds, 0.5)
    sent = statistics.mean(outcome.sent for outcome in outcomes)
    requests = statistics.mean(outcome.requests for outcome in outcomes)
    store = cluster.store
    return {
        "median": middle,
        "99th": quantile(seconds, 0.99),
        "terabytes": sent / 1e12,
        "idle": middle / 3600 * nodes * cluster.gpus * cluster.gpu_price,
        "store": sent / 1e9 * store.traffic_price + requests * store.request_price,
    }


def calibrated() -> Cluster:
    return replace(Cluster(), **measured_here(read_runs()))


def measure(_: Path, seeds: int, __: int) -> Found:
    """Return the results by store, strategy and number of nodes."""
    numbers = NODES if seeds > FEW else NODES[:2]
    found: Found = {}
    for name, store in STORES.items():
        cluster = replace(calibrated(), store=store)
        found[name] = {
            strategy: {str(nodes): simulate(cluster, strategy, nodes, seeds) for nodes in numbers}
            for strategy in STRATEGIES
        }
    return found


def length(seconds: float) -> str:
    """Return a time as it is said: 45 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def tables(found: Found) -> dict[str, str]:
    """Return a table for each store: by nodes and ways, the median and what a start costs."""
    made = {}
    for store, ways in found.items():
        lines = []
        for nodes in next(iter(ways.values())):
            starts = [by_nodes[nodes] for by_nodes in ways.values()]
            cells = (
                f"{length(one['median'])}, ${one['idle'] + one['store']:,.0f}" for one in starts
            )
            lines.append((nodes, *cells))
        made[store] = table(("nodes", *ways), lines, markdown=True)
    return made


def table_of_assumptions(cluster: Cluster) -> str:
    other = {name: value for name, value, *_ in assumptions(replace(cluster, store=HTTP))}
    lines = []
    for name, value, unit, source in assumptions(cluster):
        by_http = other[name] if name.startswith("store,") else ""
        lines.append((name, value, by_http, unit, source))
    return table(("", "S3", "HTTP", "unit", "source"), lines, 1, markdown=True)


def main() -> None:
    found = measured(__doc__, ("seeds", 100, FEW), 1, measure, "scale")
    for store, lines in tables(found).items():
        print(f"From {store}\n\n{lines}\n")
    print(table_of_assumptions(calibrated()))


if __name__ == "__main__":
    main()
