"""The cluster that is simulated: every assumption, with its unit and its source."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

MIB = 1 << 20


def _is(default: Any, unit: str, source: str, scale: float = 1) -> Any:
    return field(default=default, metadata={"unit": unit, "source": source, "scale": scale})


def _rate(default: float, source: str) -> Any:
    return _is(default, "GB/s", source, 1e9)


@dataclass(frozen=True)
class Store:
    """What the weights are read from."""

    bandwidth: float = _rate(100e9, "assumed; an object store is sized by its owner")
    requests: float = _is(
        5500.0, "requests/s", "S3 user guide, read in November 2026: at least, per prefix"
    )
    connection: float = _rate(0.09e9, "S3 performance design patterns: 85 to 90 MB/s")
    first_byte: float = _is(0.1, "s", "S3 user guide, read in November 2026: 100 to 200 ms")
    request_price: float = _is(
        0.4e-6, "$ per request", "assumed: list price of S3, us-east-1, 2025"
    )
    traffic_price: float = _is(
        0.02, "$/GB", "assumed: list price between regions of AWS, 2025; 0 within one"
    )


S3 = Store()
# One nginx or MinIO with a network card of 100 Gb/s, in the same building.
HTTP = Store(
    bandwidth=12.5e9,
    requests=20_000,
    connection=1e9,
    first_byte=0.002,
    request_price=0.0,
    traffic_price=0.0,
)


@dataclass(frozen=True)
class Cluster:
    """The nodes, and how they load. Rates are bytes per second."""

    size: float = _is(400e9, "GB", "the model: 200 billion parameters in bfloat16", 1e9)
    gpus: int = _is(8, "per node", "each with one rank")
    network: float = _rate(12.5e9, "assumed: one card of 100 Gb/s for each node")
    fabric: float = _rate(25e9, "assumed: half of 400 Gb/s for each GPU, as NCCL might reach")
    hop: float = _is(10e-6, "s", "assumed: from one rank to the next in a ring of NCCL")
    broadcast: float = _is(50e-6, "s", "assumed: starting one broadcast")
    connections: int = _is(16, "per rank", "the default of the option `connections`")
    chunk: int = _is(8 * MIB, "MiB", "the default of the option `chunk_size`", MIB)
    staging: int = _is(128 * MIB, "MiB", "the default of the option `staging`", MIB)
    ceiling: int = _is(48 * MIB, "MiB", "the default of the option `memory_ceiling`", MIB)
    index: int = _is(2 * MIB, "MiB", "the first request of every rank, at most", MIB)
    group_requests: float = _is(
        12.0, "per rank", "to the store of the group; estimated from the code, without polling"
    )
    group_rate: float = _is(10_000.0, "requests/s", "assumed: a TCPStore of torch")
    slow_nodes: float = _is(0.01, "of the nodes", "assumed")
    slow_node: float = _is(0.5, "of the speed", "assumed, of its network and its fabric")
    slow_connections: float = _is(0.001, "of the connections", "assumed")
    slow_connection: float = _is(0.25, "of the speed", "assumed")
    round_trips: float = _is(1.0, "per request", "measured: calibration")
    received: float = _is(1.0, "of the bytes of a slice", "measured: slices")
    deaths: float = _is(
        1 / 6300,
        "per node and hour",
        "Llama 3 (arXiv 2407.21783): 419 unexpected interruptions of 2,048 nodes in 54 days",
    )
    notice: float = _is(8.0, "s", "a rank without a sign of life counts as gone (heartbeat)")
    replace: float = _is(120.0, "s", "assumed: a spare node takes the place, processes start")
    gpu_price: float = _is(3.0, "$ per GPU and hour", "assumed, November 2026")
    store: Store = S3

    @property
    def request(self) -> int:
        """Bytes of a request: each connection has two of them in pinned memory."""
        return min(self.chunk, self.staging // (2 * self.connections))

    @property
    def piece(self) -> int:
        """Bytes that a rank sends at a time (_distributed/gather)."""
        most = min(32 * MIB, self.ceiling // 4)
        return most - most % (8 * MIB) or most

    @property
    def window(self) -> int:
        """Pieces that are under way at a time (_distributed/gather)."""
        return 3

    def store_rate(self, request: float) -> float:
        """Return the bytes per second that the store sends in requests of a size."""
        return min(self.store.bandwidth, self.store.requests * request)

    def first_byte(self) -> float:
        return self.store.first_byte * self.round_trips


def assumptions(cluster: Cluster) -> list[tuple[str, str, str, str]]:
    """Return name, value, unit and source of everything that the simulation takes for granted."""
    lines = []
    for part, owner in ((cluster.store, "store, "), (cluster, "")):
        for one in fields(part):
            if one.name == "store":
                continue
            value = getattr(part, one.name) / one.metadata["scale"]
            shown = f"{value:.4g}" if value < 1000 else f"{value:,.0f}"
            name = owner + one.name.replace("_", " ")
            lines.append((name, shown, one.metadata["unit"], one.metadata["source"]))
    return lines
