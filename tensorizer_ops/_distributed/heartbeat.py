"""Tells a rank on another host that is gone from one that is slow."""

from __future__ import annotations

import threading
import time

from tensorizer_ops import errors
from tensorizer_ops._distributed.store import Store

# Seconds between two beats, and without one until a rank counts as gone.
_BEAT, _GONE = 1.0, 8.0


class Heartbeat:
    """Writes to the store that this rank lives, and watches the next one.

    Each rank watches one other, so the store has as many requests as there are ranks. Connections
    do not always show that a rank is gone: Gloo waits for its timeout if it had not opened one yet.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self.watched = (rank + 1) % size
        self._stopped = threading.Event()
        self._last = (b"", time.monotonic())  # the beat that was seen, and when
        self._looked = 0.0
        store.set(f"beat/{rank}", "0")
        self._thread = threading.Thread(target=self._beat, name="tensorizer_ops", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        beats = 0
        while not self._stopped.wait(_BEAT):
            beats += 1
            try:
                self._store.set(f"beat/{self._rank}", str(beats))
            except errors.Unavailable:  # the store is gone, which the other threads see
                return

    def is_gone(self) -> bool:
        """Return whether the watched rank has been silent for too long. Looks once a second."""
        now = time.monotonic()
        if now - self._looked < _BEAT:
            return False
        self._looked = now
        key = f"beat/{self.watched}"
        if not self._store.has(key):  # it has not made the call yet
            return False
        beat = self._store.get(key)
        if beat != self._last[0]:
            self._last = (beat, now)
        return now - self._last[1] > _GONE

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
