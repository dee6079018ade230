"""The simulation of many nodes (benchmarks/scale/run.py), and what docs/scale.md says of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest

from benchmarks.harness.results import read_runs
from benchmarks.scale.cluster import Cluster, Store
from benchmarks.scale.run import STRATEGIES, tables
from benchmarks.scale.shared_link import SharedLink, Simulation
from benchmarks.scale.strategies import gather, read_all
from support.process import ROOT, TIMEOUT

# Nothing goes wrong, and nothing takes time but the bytes.
CALM = Cluster(
    size=800e6,
    gpus=1,
    network=100e6,
    fabric=1e15,
    hop=0,
    broadcast=0,
    connections=4,
    index=0,
    group_requests=0,
    slow_nodes=0,
    slow_connections=0,
    deaths=0,
    store=Store(200e6, 1e9, 1e9, 0.0),
)
WILD = replace(CALM, slow_nodes=0.3, slow_connections=0.2, deaths=60.0, replace=2.0)


def test_a_link_is_shared_as_computed_by_hand() -> None:
    """10 bytes/s for transfers of 40 (at most 2/s), 40 and 80: 2 + 4 + 4, then 2 + 8, and 8."""
    link = SharedLink(10e6)
    for name, size, limit in (("slow", 40e6, 2e6), ("short", 40e6, 9e6), ("long", 80e6, 8e6)):
        link.start(name, size, limit)
    assert link.rates() == {"slow": 2e6, "short": 4e6, "long": 4e6}
    ends = []
    while link.rates():
        for name in link.advance(link.next_end()):
            ends.append((name, link.now))
    assert ends == [("short", 10.0), ("long", 15.0), ("slow", 20.0)]
    assert link.carried == 160e6


def test_bytes_are_conserved_and_no_limit_is_exceeded() -> None:
    random = Random(3)
    simulation = Simulation(1e9)
    left = dict.fromkeys(range(60), 0.0)
    sizes = {name: random.uniform(1e6, 1e9) for name in left}
    limits = {name: random.choice([5e6, 2e7, 1e8]) for name in left}
    dropped = 0.0

    def look() -> None:
        rates = simulation.link.rates()
        assert sum(rates.values()) <= 1e9 * (1 + 1e-9)
        assert all(rate <= limits[name] for name, rate in rates.items())
        wanted = sum(limits[name] for name in rates)
        assert sum(rates.values()) >= min(1e9, wanted) * (1 - 1e-9), "capacity is left over"

    def drop(name: int) -> None:
        nonlocal dropped
        look()
        if name in simulation.link.rates():
            dropped += simulation.link.stop(name)
            left.pop(name)

    for name in list(left):
        begin = random.uniform(0, 5)
        start = (name, sizes[name], limits[name], lambda name=name: left.pop(name))
        simulation.after(begin, lambda start=start: simulation.transfer(*start))
        if name % 10 == 1:
            simulation.after(begin + 4, lambda name=name: drop(name))
    simulation.run(lambda: not left)
    assert simulation.link.carried == pytest.approx(sum(sizes.values()) - dropped, rel=1e-6)


def test_calm_clusters_take_the_times_computed_by_hand() -> None:
    """800 MB: a node alone reads at its 100 MB/s; four share the 200 MB/s of the store."""
    assert read_all(CALM, 1, Random(0), 1).seconds == pytest.approx(8, rel=1e-6)
    assert read_all(CALM, 4, Random(0), 1).seconds == pytest.approx(16, rel=1e-6)
    assert read_all(CALM, 4, Random(0), 1).sent == pytest.approx(4 * 800e6, rel=1e-6)
    # The store sends the file once.
    shared = gather(CALM, 4, Random(0))
    assert shared.seconds == pytest.approx(4, rel=1e-6)
    assert shared.sent == pytest.approx(800e6, rel=1e-6)


def test_gather_sends_the_pieces_in_order() -> None:
    """If the fabric is slow, the time is that of the broadcasts after the first piece."""
    slow = replace(CALM, fabric=20e6, ceiling=40_000_000)
    pieces = 800e6 / slow.piece
    first = slow.piece / 50e6  # of four nodes that share 200 MB/s
    found = gather(slow, 4, Random(0)).seconds
    assert found == pytest.approx(first + pieces * slow.piece / 20e6, rel=0.01)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_seed_gives_the_same_result(strategy: str) -> None:
    one, again, other = (STRATEGIES[strategy](WILD, 8, Random(seed)) for seed in (1, 1, 2))
    assert one == again and one != other


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_node_that_dies_starts_again(strategy: str) -> None:
    calm = STRATEGIES[strategy](CALM, 4, Random(5))
    deadly = replace(CALM, deaths=120.0, replace=5.0)
    outcomes = [STRATEGIES[strategy](deadly, 4, Random(seed)) for seed in range(20)]
    for outcome in outcomes:
        if outcome.restarts:
            assert outcome.seconds > calm.seconds
        else:
            assert outcome.seconds == pytest.approx(calm.seconds)
    assert any(outcome.restarts for outcome in outcomes)


def test_a_death_during_a_gather_costs_all_nodes_what_they_have_read() -> None:
    outcome = next(
        found
        for seed in range(50)
        if (found := gather(replace(CALM, deaths=120.0), 4, Random(seed))).restarts
    )
    cluster = replace(CALM, deaths=120.0)
    least = outcome.restarts * (cluster.notice + cluster.replace)
    assert outcome.seconds > least + gather(CALM, 4, Random(0)).seconds - 1


def test_slow_connections_take_time() -> None:
    """The store has room for all, so each node reads as fast as its connections allow."""
    bound = replace(CALM, store=Store(1e12, 1e9, 20e6, 0.01), network=1e9)
    calm = read_all(bound, 2, Random(0), 1).seconds
    slow = replace(bound, slow_connections=0.5)
    assert read_all(slow, 2, Random(0), 1).seconds > 1.2 * calm
    assert gather(slow, 8, Random(0)).seconds > 1.2 * gather(bound, 8, Random(0)).seconds


def test_the_page_shows_the_newest_results() -> None:
    """The numbers of docs/scale.md are those of benchmarks/results."""
    page = (ROOT / "docs" / "scale.md").read_text()
    found = {run.kind: run.found for run in reversed(read_runs())}
    for shown in tables(found["scale"]).values():
        assert shown in page


def test_the_benchmark_runs() -> None:
    command = [sys.executable, "-m", "benchmarks.scale.run", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert "tensorizer_ops, gather" in done.stdout
