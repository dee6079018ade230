"""Shortens ninja's output: shows the name of each compiled source instead of the command."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator

COMPILED = re.compile(rb"(\[\d+/\d+\]) .* -c (/\S+) -o ")


def _shorten(source: int, target: int) -> None:
    folder = os.fsencode(os.getcwd())
    with open(source, "rb") as lines, open(target, "wb", buffering=0, closefd=False) as shown:
        for line in lines:
            match = COMPILED.match(line)
            short = match and b"%s %s\n" % (match[1], os.path.relpath(match[2], folder))
            shown.write(short or line)


@contextlib.contextmanager
def short_progress() -> Iterator[None]:
    """Shorten ninja's output in the block; compiler messages and other output stay unchanged."""
    sys.stdout.flush()
    stdout = os.dup(1)
    source, target = os.pipe()
    os.dup2(target, 1)
    os.close(target)
    thread = threading.Thread(target=_shorten, args=(source, stdout), daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        # A server that the compiler started (of ccache for example) may never close the pipe.
        thread.join(timeout=30)
        os.close(stdout)
