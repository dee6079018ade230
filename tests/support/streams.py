"""Bytes to read as a stream, and a web server that serves them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from local_servers.web import Web, nginx

BYTES = random.Random(1).randbytes(24 << 20)
SMALL = BYTES[:100_000]


@contextmanager
def stream_server(folder: Path) -> Iterator[Web]:
    with nginx(folder) as server:
        (server.root / "large").write_bytes(BYTES)
        (server.root / "small").write_bytes(SMALL)
        (server.root / "empty").write_bytes(b"")
        (server.root / "lines").write_bytes(b"one\ntwo\n\nfour")
        yield server
