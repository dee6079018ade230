"""Where a chain is: its list, and the files of its steps."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from tensorizer_ops import errors
from tensorizer_ops._base.folder import Folder, unsigned
from tensorizer_ops._base.option_uses import for_loads, for_saves
from tensorizer_ops._base.options import Options, SecretOptions
from tensorizer_ops._base.targets import Target
from tensorizer_ops._chain import lease
from tensorizer_ops._chain.files import check_name, remove_step, verify_step
from tensorizer_ops._chain.listing import FILES, KEY, LOCK, Entry, Listing, logger, read
from tensorizer_ops._front.load_save import save


class Store(NamedTuple):
    """A folder with a chain, and the options of loads and of saves."""

    folder: Folder
    loads: SecretOptions
    saves: SecretOptions

    @classmethod
    def at(cls, uri: Target, options: Options | None) -> Store:
        # Others may put links under the names of its files.
        own = {"replace_links": "true", **unsigned(options)}
        store = cls(Folder(uri, own), for_loads(options), for_saves(own))
        path = store.folder.path
        if path is not None and os.path.exists(path) and not os.path.isdir(path):
            raise errors.InvalidArgument(f"{store.folder.label} is a file, and a chain is a folder")
        if "key" in store.loads:  # what a chain has encrypted is always authenticated
            store.loads.setdefault("require_authenticated", "true")
        if path is not None:
            store.saves.setdefault("fsync", "true")
        return store

    def uri(self, entry: Entry) -> str:
        """Return the URI that other functions load a step from."""
        return self.folder.uri(entry.place)

    def listing(self) -> Listing:
        """Return the list of steps; raise ``FileNotFoundError`` if there is none."""
        found = read(self.folder, self.loads)
        if found is None:
            raise errors.NotFound(f"{self.folder.label} has no chain of checkpoints")
        return found

    def listing_or_new(self) -> Listing:
        return read(self.folder, self.loads) or Listing()

    def write(self, listing: Listing) -> None:
        """Write the list, and then its copy: one of them is whole at any moment."""
        listing.writes += 1
        texts = {KEY: listing.text()}
        for name in FILES:
            save(self.folder.uri(name), {}, options=self.saves, metadata=texts)

    def make_folder(self, entry: Entry) -> None:
        """Make the folder of a step, unless others have a link there that leads elsewhere."""
        if self.folder.path is not None and entry.ranks:
            path = os.path.join(self.folder.path, entry.place)
            try:
                os.mkdir(path)
            except OSError as error:
                text = f"cannot make the folder of step {entry.step}: {error.strerror}: {path!r}"
                raise errors.FileError(error.errno or errno.EIO, text) from error

    def verify(
        self, entry: Entry, share: tuple[int, int] = (0, 1), verify: str = "all", threads: int = 0
    ) -> None:
        """Compare the files of a step with their hashes: all, or the share of a rank."""
        verify_step(self.folder, entry, self.loads, verify, threads, share)

    def check_name(self, entry: Entry) -> None:
        """Raise if something else is in the place of a step."""
        check_name(self.folder, entry, self.loads)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let nobody else on this machine change the list in the block.

        Servers have no locks. Where a file system has none, nobody waits.
        """
        path = self.folder.path
        with ExitStack() as stack:
            if path is not None:
                with suppress(OSError):
                    os.makedirs(path, exist_ok=True)
                    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                    file = os.open(os.path.join(path, LOCK), flags, 0o666)
                    stack.callback(os.close, file)
                    fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def take(self, entry: Entry) -> None:
        """Say that a step is being read, and raise ``errors.NotFound`` if it is not listed."""
        lease.take(self.folder, entry, self.saves)
        if entry.name not in [each.name for each in self.listing().saved]:
            raise errors.NotFound(f"step {entry.step} of {self.folder.label} was just removed")

    def remove(self, removed: list[Entry], grace: int) -> list[Entry]:
        """Remove the files of steps, and return those that stay for now.

        A step that is being read stays, and one that was removed less than ``grace`` seconds ago.
        """
        staying = []
        for entry in removed:
            try:
                if entry.since + grace > time.time() or self._is_read(entry):
                    staying.append(entry)
                else:
                    remove_step(self.folder, entry)
            except errors.Error as error:
                logger.warning("step %d stays on disk for now: %s", entry.step, str(error))
                staying.append(entry)
        return staying

    def _is_read(self, entry: Entry) -> bool:
        return lease.is_read(self.folder, entry, self.loads)
