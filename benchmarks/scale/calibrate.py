"""Measures what benchmarks/scale/run.py takes from this machine, and compares its model with loads.

    python -m benchmarks.scale.calibrate [--quick] [--mib 96] [--rounds 5] [--json FILE]

The servers are slower than this machine on purpose, so that they decide and not its CPUs. Other
load on the machine makes a load slower, so the median of the rounds counts, beside the quickest and
the slowest.

  ranks    each of 2, 4 and 8 ranks loads the file, and then they share the load with
           `distributed.load`, as on several hosts: each rank has a PID namespace of its own, and
           Gloo sends between them. From a server whose connections share 64 MB/s, from one that is
           100 ms away, and from one that gives each connection 16 MB/s
  ranges   one connection loads in requests of 1 MiB, with and without a round trip of 50 ms
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch

import tensorizer_ops
from benchmarks.harness.measure import prepare_to_fork
from benchmarks.harness.results import Found, measured
from benchmarks.harness.servers import web_server
from benchmarks.harness.tables import table
from benchmarks.scale.cluster import MIB, Cluster, Store
from benchmarks.scale.ranks import run_hosts
from benchmarks.scale.strategies import gather, read_all
from local_servers.delay import delay
from local_servers.web import Web

RANKS = (2, 4, 8)
SHARED, EACH = 64e6, 16e6
CONNECTIONS = 4  # of a rank: nginx has 256
ROUND_TRIP, FAR = 0.05, 0.1
NAME = "model.tensors"


def modelled(ranks: int, size: int, store: Store, chunk: int) -> dict[str, float]:
    """Return the seconds that the simulation gives for the same loads."""
    cluster = Cluster(
        size=size,
        gpus=1,
        connections=CONNECTIONS,
        chunk=chunk,
        staging=1 << 40,  # nothing is staged on the way to the CPU
        network=1e9,
        fabric=1e9,
        slow_nodes=0,
        slow_connections=0,
        deaths=0,
        store=store,
    )
    everyone = read_all(cluster, ranks, Random(0), 1)
    shared = gather(cluster, ranks, Random(0))
    return {"everyone": everyone.seconds, "gather": shared.seconds}


def sent_by(web: Web) -> int:
    return sum(int(line.split('"')[2].split()[1]) for line in web.requests())


def ranks_of(folder: Path, size: int, rounds: int, state: dict[str, torch.Tensor]) -> list[Any]:
    lines = []
    each = Store(1e9, 1e9, EACH, 0.002)
    stores = {
        "connections share 64 MB/s": (Store(SHARED, 1e9, 1e9, 0.002), 8 * MIB),
        "100 ms away, in requests of 1 MiB": (Store(1e12, 1e9, 1e9, FAR), MIB),
        "16 MB/s each": (each, 8 * MIB),
    }
    for number, (kind, (store, chunk)) in enumerate(stores.items()):
        rate = int(EACH) if store is each else None
        with web_server(folder / str(number), bytes_per_second=rate) as web:
            tensorizer_ops.save(web.root / NAME, state, hashes="none")
            with delay(web.port, store.first_byte / 2, store.bandwidth) as proxy:
                # A connection that is paced must reach the client as it is.
                url = web.url(NAME) if store is each else replace(web, port=proxy.port).url(NAME)
                options = {"connections": CONNECTIONS, "chunk_size": chunk}
                for count in RANKS:
                    web.requests()
                    found = run_hosts(count, url, rounds, options)
                    expected = modelled(count, size, store, chunk)
                    line = {"server": kind, "ranks": count, "modelled": expected, **found}
                    # Without the loads before the first round, which read the index.
                    sent = sent_by(web) - 2 * count * MIB
                    line["sent"] = sent / rounds / size - count  # by gather, of the file
                    lines.append(line)
    return lines


def seconds_of(uri: str, **options: int) -> float:
    begin = time.perf_counter()
    tensorizer_ops.load(uri, options={"connections": 1, **options})
    return time.perf_counter() - begin


def round_trips(web: Web, rounds: int) -> list[float]:
    """Return how many round trips a request takes, in each round."""
    found = []
    with delay(web.port, 0.0) as near, delay(web.port, ROUND_TRIP / 2) as far:
        for _ in range(rounds):
            seconds = []
            for proxy in (near, far):
                proxy.exchanges()
                uri = replace(web, port=proxy.port).url(NAME)
                seconds.append(seconds_of(uri, chunk_size=MIB))
            found.append((seconds[1] - seconds[0]) / len(far.exchanges()) / ROUND_TRIP)
    return found


def measure(folder: Path, mebibytes: int, rounds: int) -> Found:
    tensors = max(mebibytes // 48, 1)
    state = {f"t{i}": torch.randn((mebibytes << 18) // tensors) for i in range(tensors)}
    size = sum(tensor.nbytes for tensor in state.values())
    small = {"one": torch.randn(4 << 18)}  # 4 MiB, whatever is measured otherwise
    tiny = {"tiny": torch.ones(1)}
    lines = ranks_of(folder, size, rounds, {**state, **tiny})
    with web_server(folder / "small") as web:
        tensorizer_ops.save(web.root / NAME, small, hashes="none")
        trips = round_trips(web, rounds)
    return {
        "bytes": size,
        "ranks": lines,
        "round trips": trips,
    }


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def lines_of(found: Found) -> list[list[str]]:
    """Return the lines of the table of loads by ranks."""
    lines = []
    for line in found["ranks"]:
        everyone, shared = line["everyone"], line["gather"]
        model = line["modelled"]
        ratio = statistics.median(everyone["seconds"]) / statistics.median(shared["seconds"])
        lines.append(
            [
                line["server"],
                str(line["ranks"]),
                spread(everyone["seconds"]),
                f"{model['everyone']:.2f}",
                spread(shared["seconds"]),
                f"{model['gather']:.2f}",
                f"{ratio:.1f}",
                f"{shared['memory'] / MIB:.0f}",
                f"{line['sent']:.2f}",
            ]
        )
    return lines


HEAD = (
    *("server", "ranks", "everyone, s", "modelled", "gather, s", "modelled", "ratio"),
    *("MiB beyond the tensors", "sent by gather, of the file"),
)


def main() -> None:
    prepare_to_fork()
    found = measured(__doc__, ("mib", 96, 8), 5, measure, "calibration")
    print(table(HEAD, lines_of(found)), end="\n\n")
    print(f"round trips of a request: {spread(found['round trips'])}")


if __name__ == "__main__":
    main()
