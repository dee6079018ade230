"""Says that a step is being read, so that nobody removes its files."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tensorizer_ops import errors
from tensorizer_ops._base.folder import Folder, unsigned
from tensorizer_ops._chain.listing import MOST_BYTES, Entry, logger, opened
from tensorizer_ops._front.load_save import save

_KEY = "tensorizer_ops.chain.read_until"
# Seconds that a lease is valid, and after which a longer load renews it. Clocks may differ by what
# is between.
_VALID, _RENEWED = 300.0, 60.0


def take(folder: Folder, entry: Entry, options: dict[str, str]) -> None:
    """Say that a step is being read, where this process may write."""
    if folder.name.lower().startswith(("http://", "https://")):
        return
    texts = {_KEY: str(time.time() + _VALID)}
    try:
        save(folder.uri(entry.lease), {}, options=options, metadata=texts)
    except errors.Error as error:  # rights, a full disk, ...: reads will tell whether it is there
        logger.info("step %d may be removed while it is read: %s", entry.step, str(error))


@contextmanager
def renewed(folder: Folder, entry: Entry, options: dict[str, str]) -> Iterator[None]:
    """Renew a lease until the block ends."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(_RENEWED):
            take(folder, entry, options)

    thread = threading.Thread(target=renew, name="tensorizer_ops lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def is_read(folder: Folder, entry: Entry, options: dict[str, str]) -> bool:
    """Return whether somebody reads a step. A damaged lease is one that was just taken."""
    try:
        file = opened(folder, entry.lease, unsigned(options), MOST_BYTES)
        until = float(file.metadata()[_KEY])
    except FileNotFoundError:
        return False
    except (errors.Crypto, KeyError, ValueError):
        until = entry.since + _VALID
    return 0 < until - time.time() < 2 * _VALID  # else a clock was wrong
