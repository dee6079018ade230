"""A proxy that adds latency to a server, limits its rate, and records the exchanges over it.

    python local_servers/delay.py PORT SECONDS BYTES_PER_SECOND

listens on a free port of this machine, which it prints, and forwards everything to PORT and back,
each time SECONDS later. All connections together receive BYTES_PER_SECOND at most. It is a separate
process, so that no other Python code delays it. A line on stdin is a command; the proxy exits when
stdin is closed.

  exchanges  prints the exchanges since the previous such command

An exchange is a request with its response. It begins with the first bytes from the client after a
response, and ends with the last bytes to the client before its next request. So requests on a
connection must be sequential: HTTP/1.1 without TLS. Connecting is not delayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PIECE = 256 << 10
PIECES_ON_THE_WAY = 256

Exchange = tuple[float, float]  # when it began, and when it ended


def requests_in_a_row(exchanges: list[Exchange]) -> int:
    """Return the length of the longest chain of requests that each began after the previous ended.

    A client that needs a response before its next request makes such a chain. So does a client that
    sends a request late for another reason, so the result may be higher than the number of
    sequential round trips, but never lower.
    """
    chains: list[tuple[float, int]] = []  # when its last request ended, and its length
    for begin, end in sorted(exchanges):
        chains.append((end, 1 + max((n for ended, n in chains if ended <= begin), default=0)))
    return max((n for _, n in chains), default=0)


# -- the process that starts the proxy -------------------------------------------------------------


@dataclass
class Delay:
    port: int
    _process: subprocess.Popen[str]

    def exchanges(self) -> list[Exchange]:
        """Return the exchanges since the last call, without requests that have no response yet."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("exchanges\n")
        self._process.stdin.flush()
        return [(begin, end) for begin, end in json.loads(self._process.stdout.readline())]


@contextmanager
def delay(port: int, seconds: float, bytes_per_second: float = math.inf) -> Iterator[Delay]:
    """Start a proxy for `port`; a response takes at least `2 * seconds` from its request."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(port), str(seconds), str(bytes_per_second)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield Delay(int(process.stdout.readline()), process)
    finally:
        process.terminate()
        process.wait()


# -- the proxy process -----------------------------------------------------------------------------


class Proxy:
    def __init__(self, port: int, seconds: float, bytes_per_second: float) -> None:
        self._port = port
        self._seconds = seconds
        self._bytes_per_second = bytes_per_second
        self._free = 0.0  # when the bytes that were sent to clients so far are due to have arrived
        self._exchanges: list[list[float]] = []
        self._now = asyncio.get_running_loop().time

    def report(self) -> str:
        ended = [exchange for exchange in self._exchanges if len(exchange) == 2]
        self._exchanges = [exchange for exchange in self._exchanges if len(exchange) == 1]
        return json.dumps(ended)

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            to_client.close()
            return
        current: list[float] = []

        async def passes(size: int) -> None:
            pass

        def asked() -> None:
            nonlocal current
            if len(current) != 1:
                current = [self._now()]
                self._exchanges.append(current)

        async def answered(size: int) -> None:
            self._free = max(self._free, self._now()) + size / self._bytes_per_second
            await asyncio.sleep(self._free - self._now())
            if current:
                current[1:] = [self._now()]

        ways = (
            self._pass_on(client, to_server, asked, passes),
            self._pass_on(server, to_client, lambda: None, answered),
        )
        # If one side breaks its connection, the other one is closed as well.
        with contextlib.suppress(OSError):
            await asyncio.gather(*ways)
        for writer in (to_server, to_client):
            writer.close()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        came: Callable[[], None],
        goes: Callable[[int], Awaitable[None]],
    ) -> None:
        """Forward pieces, each delayed on its own, so that delays do not add up."""
        way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES_ON_THE_WAY)

        async def deliver() -> None:
            while True:
                due, piece = await way.get()
                await asyncio.sleep(due - self._now())
                if not piece:
                    writer.write_eof()
                    return
                await goes(len(piece))
                writer.write(piece)
                await writer.drain()

        delivery = asyncio.create_task(deliver())
        try:
            piece = b"-"
            while piece:
                piece = await reader.read(PIECE)
                if piece:
                    came()
                await way.put((self._now() + self._seconds, piece))
            await delivery
        finally:
            delivery.cancel()


async def main(port: int, seconds: float, bytes_per_second: float) -> None:
    proxy = Proxy(port, seconds, bytes_per_second)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=PIECE, backlog=256)
    over = asyncio.Event()

    def command() -> None:
        match sys.stdin.readline().strip():
            case "exchanges":
                print(proxy.report(), flush=True)
            case _:
                over.set()

    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), command)
    print(server.sockets[0].getsockname()[1], flush=True)
    await over.wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), *map(float, sys.argv[2:])))
