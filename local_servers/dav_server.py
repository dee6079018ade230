"""A WebDAV server that heeds the conditions of requests: WsgiDAV, serving a folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from local_servers.waiting import LAST_RESORT, listens, wait_until
from local_servers.web import free_port


@contextmanager
def dav_server(folder: Path) -> Iterator[str]:
    """Start a server, and yield its URL."""
    root = folder / "dav"
    root.mkdir(parents=True)
    port = free_port()
    log = folder / "wsgidav.log"
    program = Path(sys.executable).with_name("wsgidav")
    command = [str(program), "--host", "127.0.0.1", "--port", str(port), "--root", str(root)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--auth", "anonymous", "--no-config"], stdout=output, stderr=output
        )
    try:
        wait_until(lambda: listens(port), process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(LAST_RESORT)
