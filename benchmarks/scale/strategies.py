"""What the nodes of a cluster do to load a model, simulated: each returns when all are ready.

The 8 ranks of a node are alike, so a node stands for all of them: it has 8 times the connections,
and its slowest rank decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from benchmarks.scale.cluster import Cluster
from benchmarks.scale.shared_link import Simulation

HOUR = 3600.0
# In how many parts a share is simulated: pieces are sent when their part has arrived.
PARTS = 256


@dataclass(frozen=True)
class Outcome:
    """One start of a cluster."""

    seconds: float  # until every node is ready
    sent: float  # bytes that the store has sent
    requests: float
    restarts: int


@dataclass(frozen=True)
class Node:
    speed: float  # of the network and the fabric, of 1
    slow: int  # connections

    @staticmethod
    def draw(cluster: Cluster, random: Random) -> Node:
        speed = cluster.slow_node if random.random() < cluster.slow_nodes else 1.0
        slow = 0
        if cluster.slow_connections:
            # The number of trials to each success has a geometric distribution.
            left = cluster.connections * cluster.gpus
            base = math.log1p(-cluster.slow_connections)
            while (left := left - 1 - int(math.log(1 - random.random()) / base)) >= 0:
                slow += 1
        return Node(speed, slow)

    def rate(self, cluster: Cluster, size: float) -> float:
        """Return the rate at which the ranks of a node read, each `size` bytes in all.

        Their connections never wait for each other.
        """
        at_once = min(cluster.connections, math.ceil(size / cluster.request))
        connections = at_once * cluster.gpus
        rate = cluster.store.connection
        busy = cluster.request / rate
        one = rate * busy / (busy + cluster.first_byte())
        slowed = one * (connections - self.slow * (1 - cluster.slow_connection))
        return min(cluster.network * self.speed, max(slowed, 0.0))


class Fleet:
    """Nodes that each fetch `size` bytes over one link, in parts, whatever the others do."""

    def __init__(
        self, cluster: Cluster, nodes: int, random: Random, capacity: float, size: float
    ) -> None:
        self.cluster, self.size, self.random = cluster, size, random
        self.simulation = Simulation(capacity)
        self.nodes = [Node.draw(cluster, random) for _ in range(nodes)]
        self.lives = [0] * nodes
        self.ready: set[int] = set()
        self.restarts = 0
        self.parts = 1
        self.read: list[list[float]] = [[] for _ in range(nodes)]  # when each part had arrived

    def run(self, wait: float = 0.0) -> float:
        cluster, simulation = self.cluster, self.simulation
        for node in range(len(self.nodes)):
            self._start(node, wait + cluster.first_byte())
        if cluster.deaths:
            rate = cluster.deaths * len(self.nodes) / HOUR

            def strike() -> None:
                self._die(self.random.randrange(len(self.nodes)))
                simulation.after(self.random.expovariate(rate), strike)

            simulation.after(self.random.expovariate(rate), strike)
        return simulation.run(self.is_over)

    def is_over(self) -> bool:
        return len(self.ready) == len(self.nodes)

    def _start(self, node: int, seconds: float) -> None:
        life = self.lives[node]

        def begin() -> None:
            if life == self.lives[node]:
                rate = self.nodes[node].rate(self.cluster, self.size / self.cluster.gpus)
                self.simulation.transfer(node, self.size / self.parts, rate, arrived)

        def arrived() -> None:
            self.read[node].append(self.simulation.now)
            if len(self.read[node]) < self.parts:
                begin()
            else:
                self.ready.add(node)

        self.read[node] = []
        self.simulation.after(seconds, begin)

    def _die(self, node: int) -> None:
        self.restarts += 1
        self.lives[node] += 1
        self.ready.discard(node)
        self.simulation.stop(node)
        self.nodes[node] = Node.draw(self.cluster, self.random)
        self._start(node, self.cluster.replace + self.cluster.first_byte())


def meeting(cluster: Cluster, nodes: int) -> float:
    """Return the seconds that the ranks of all groups need to meet and to part."""
    return nodes * cluster.gpus * cluster.group_requests / cluster.group_rate


def read_all(cluster: Cluster, nodes: int, random: Random, copies: float) -> Outcome:
    """Each node reads the model `copies` times: 8 if every rank reads all of it."""
    size = copies * cluster.size + cluster.gpus * cluster.index
    fleet = Fleet(cluster, nodes, random, cluster.store_rate(cluster.request), size)
    seconds = fleet.run()
    sent = fleet.simulation.link.carried
    return Outcome(seconds, sent, sent / cluster.request, fleet.restarts)


def seconds_of_broadcast(cluster: Cluster, nodes: int, speed: float) -> float:
    """Return the seconds between two pieces on the fabric, when all of them are read.

    A piece goes around a ring. No more than the window of pieces are under way at a time.
    """
    if nodes == 1:
        return 0.0
    one = cluster.broadcast + cluster.piece / (cluster.fabric * speed)
    return max(one, (one + (nodes - 1) * cluster.hop) / cluster.window)


def gather(cluster: Cluster, nodes: int, random: Random) -> Outcome:
    """What `distributed.load` does, with one group for each place in a node.

    Each rank reads a share, and sends it to the same rank of the other nodes. One failure fails
    all, and everything starts again.
    """
    sent = requests = before = 0.0
    restarts = 0
    while True:
        attempt = _Gather(cluster, nodes, random)
        seconds = attempt.attempt()
        sent += attempt.simulation.link.carried
        requests += attempt.requests
        if not attempt.dead:
            return Outcome(before + seconds, sent, requests, restarts)
        before += seconds + cluster.notice + cluster.replace
        restarts += 1


class _Gather(Fleet):
    """One attempt; it is over when all have the model, or when a node has died."""

    def __init__(self, cluster: Cluster, nodes: int, random: Random) -> None:
        self.share = cluster.size / cluster.gpus / nodes
        rate = cluster.store_rate(cluster.request)
        super().__init__(cluster, nodes, random, rate, self.share * cluster.gpus)
        self.pieces = math.ceil(self.share / cluster.piece)
        self.parts = min(self.pieces, PARTS)
        self.requests = nodes * cluster.gpus * (1 + self.share / cluster.request)
        self.dead = False

    def attempt(self) -> float:
        cluster, count = self.cluster, len(self.nodes)
        index = cluster.first_byte() + cluster.index / cluster.store.connection
        self.run(wait=meeting(cluster, count) + index)
        self.simulation.link.carried += cluster.index * cluster.gpus * count
        if self.dead:
            return self.simulation.now
        end = self._sent()
        # Nodes may also die between the last read and the end.
        self.simulation.after(end - self.simulation.now, lambda: None)
        return self.simulation.run(lambda: self.dead or self.simulation.now >= end)

    def is_over(self) -> bool:
        return self.dead or super().is_over()

    def _die(self, node: int) -> None:
        self.dead = True

    def _sent(self) -> float:
        """Return when the last piece has been sent, in the order that all ranks keep."""
        cluster = self.cluster
        step = seconds_of_broadcast(cluster, len(self.nodes), min(n.speed for n in self.nodes))
        clock = 0.0
        for number in range(self.pieces):
            part = number * self.parts // self.pieces
            for read in self.read:
                clock = max(clock, read[part]) + step
        return clock
