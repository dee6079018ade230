"""Follows versions that a publisher writes."""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import IO, Any

import torch

from tensorizer_ops import _core, errors
from tensorizer_ops._base.arguments import checked
from tensorizer_ops._base.folder import raise_own
from tensorizer_ops._base.option_uses import for_loads, for_saves
from tensorizer_ops._base.options import Options, SecretOptions, as_text
from tensorizer_ops._base.targets import Target, local_path, to_uri
from tensorizer_ops._front.deltas import apply_opened
from tensorizer_ops._front.inspection import File
from tensorizer_ops._front.load_save import load
from tensorizer_ops._front.modules import load_into
from tensorizer_ops._front.rewrite import convert
from tensorizer_ops._versions.listing import Entry, Listing, Place, Version, digest_of, logger

# Errors of a delta that cannot be applied to the target: another way may be there.
_NO_WAY = (errors.InvalidFormat, errors.HashMismatch, errors.InvalidArgument, errors.IsADirectory)
# The metadata of a delta with the digest of the model that it makes.
_TARGET_KEY = "tensorizer_ops.delta.target"
# How often files may be removed while they are about to be read.
_MOST_REMOVED = 5


@checked
def follow(
    uri: Target,
    target: Target | torch.nn.Module | MutableMapping[str, torch.Tensor],
    *,
    interval: float = 1.0,
    patience: float | None = None,
    stop: threading.Event | None = None,
    threads: int = 0,
    options: Options | None = None,
    target_options: Options | None = None,
) -> Iterator[Version]:
    """Bring a file, or tensors in memory, to each version that a :class:`Publisher` writes.

    Reads what is shortest: the deltas since the version that is there, or the last whole model and
    the deltas since then. Versions that were published meanwhile are passed on the way, and not
    returned. All bytes are checked, and so is the model that they make: see :func:`apply`.

    Waits while there is no newer version, nothing yet, or no answer from the server, which is
    logged. A publisher that ends, at any moment, does no harm. After an outage while tensors in
    memory were changed, all of the model is loaded; with ``trust``, in a temporary file if it
    begins with an older version. If they are not a version that was returned when this ends, the
    last error is raised.

    Args:
        uri: the place, as for :class:`Publisher`.
        target: a file, which need not exist; a module; or a dict of tensors, which gets them from
            the first version if it is empty. A file that is a version already is brought on from
            there, and has one follower. Tensors keep their memory.
        interval: how many seconds to wait before the list of versions, a small file, is read again.
        patience: ends after so many seconds without a new version; never if omitted.
        stop: ends soon after this is set, by another thread; a version that has begun comes first.
        threads: how many threads compute; 0 means one for every CPU that the process may use.
        options: options as for loads, for what was published.
        target_options: options as for loads and for saves, for a file.

    Returns:
        An iterator over the versions, each when the target has it.

    Raises:
        ValueError: what was published is damaged. A file has its last version then, or a newer one.
    """
    for name, seconds in {"interval": interval, "patience": patience}.items():
        if seconds is not None and seconds < 0:
            raise errors.InvalidArgument(f"{name} is {seconds:g} seconds, and must be 0 or more")
    follower = Follower(uri, target, threads, options, target_options)
    return follower.run(interval, patience, stop or threading.Event())


class Follower:
    def __init__(
        self,
        uri: Target,
        target: Any,
        threads: int,
        options: Options | None,
        target_options: Options | None,
        after: Version | None = None,
    ) -> None:
        """``after`` is the version that was returned last, by a follower that an error ended."""
        self._given = uri, options
        self._place = Place(uri, options)
        self._target, self._threads = target, threads
        self._is_file = isinstance(target, (str, bytes, os.PathLike))
        if not self._is_file and target_options:
            raise errors.InvalidArgument("target_options is for files, and the target is in memory")
        self._target_loads = for_loads(target_options)
        self._target_saves = for_saves(target_options)
        if "max_shard_size" in self._target_saves:
            raise errors.InvalidArgument(
                "the option 'max_shard_size' makes several files, and a follow keeps one"
            )
        if "digest" in self._place.loads or "digest" in self._target_loads:
            raise errors.InvalidArgument(
                "the option 'digest' is of one version, and a follow makes all: the option 'trust' "
                "says who must have signed them"
            )
        if "trust" in self._target_loads:
            raise errors.InvalidArgument(
                "target_options has 'trust', and nobody signs what a follow writes: give it in "
                "options"
            )
        self._is_empty = False  # whether there is no list
        self._version = after  # that was returned last
        self._reached = after  # that the target was brought to, which may not have been the last
        self._tried: Version | None = None  # that the last change was to make
        self._is_trusting = "trust" in self._place.loads
        # Of what the target is; None: unknown.
        self._digest = self._digest_of_file(not self._is_trusting) if self._is_file else None
        # Whether the target, which a change has begun, may be no version that was returned.
        self._is_between = False
        self._failure: errors.Error | None = None  # of the last change
        self._older: Version | None = None  # that was refused last

    def run(
        self, interval: float, patience: float | None, stop: threading.Event
    ) -> Iterator[Version]:
        try:
            yield from self._run(interval, patience, stop)
            if self._is_between and not self._is_file and self._failure is not None:
                raise self._failure
        finally:
            self._failure = None  # its traceback keeps files open

    def _run(
        self, interval: float, patience: float | None, stop: threading.Event
    ) -> Iterator[Version]:
        since = time.monotonic()
        is_away = is_told = False
        while not stop.is_set():
            version = None
            try:
                version = self._go_on()
                is_away = False
            except (errors.Unavailable, errors.TimedOut) as error:
                if not is_away:
                    logger.warning("%s: waiting for it", str(error))
                is_away = True
            if version is not None:
                yield version
                since = time.monotonic()
                continue
            wait = interval
            if patience is not None:
                wait = min(wait, since + patience - time.monotonic())
                if wait <= 0:
                    return
            if self._is_empty and not is_told:
                logger.warning("nothing was published in %s yet: waiting for it", self._place.label)
                is_told = True
            stop.wait(wait)

    def _digest_of_file(self, believed: bool) -> str | None:
        """Return the digest of the target; as it lists it, which nobody signs, if ``believed``."""
        path = local_path(self._target)
        is_one = path is None or not (os.path.isdir(path) or path.endswith(".index.json"))
        if self._is_trusting and not is_one:  # others may have put files there
            raise errors.InvalidArgument(
                f"{path!r} is no single file, which the option 'trust' of a follow needs"
            )
        self._refuse_stream()
        is_there = path is not None and os.path.lexists(path)
        try:
            if path is None or not is_there or _core.leads_to_own_file(os.fsencode(path)):
                file = File(self._target, self._target_loads, in_any_order=True)
                digest = digest_of(file, self._threads, believed=believed)
                if not is_one or file.is_own():
                    return digest
            logger.warning("%r belongs to another user, or leads nowhere: it is replaced", path)
            return None
        except errors.NotFound:
            return None
        except _NO_WAY as error:
            logger.warning("%s: it will be replaced", str(error))
            return None

    def _refuse_stream(self) -> None:
        """Raise if the target is a pipe or a device, which others may have put there."""
        path = local_path(self._target)
        if path and os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            raise errors.InvalidArgument(
                f"{path!r} is a pipe or a device, and a follow needs a file, which it reads again"
            )

    def _go_on(self) -> Version | None:
        """Bring the target to the newest version; return ``None`` if it is there already."""
        for tries in range(_MOST_REMOVED):
            content = self._place.read()
            self._is_empty = content is None
            if content is None:
                return None
            listing = self._place.understood(content)
            if not listing.versions:
                return None
            if self._is_between and self._is_file:
                self._digest, self._is_between = self._digest_of_file(believed=False), False
                # An upload whose answer was lost.
                if self._tried is not None and self._digest == self._tried.digest:
                    self._reached = self._tried
            newest = listing.versions[-1].version
            if newest == self._version and self._digest == newest.digest:
                return None
            if self._is_trusting and self._goes_back(newest):
                return None
            try:
                self._go(listing)
            except errors.Error as error:
                self._failure = error
                # It may have been removed since the list was read.
                is_gone = isinstance(error, (errors.NotFound, errors.Crypto))
                if not is_gone or tries + 1 == _MOST_REMOVED or self._place.read() == content:
                    raise
                logger.info("%s: reading the list again", str(error))
                continue
            self._version = self._reached = newest
            self._is_between, self._failure = False, None
            return newest
        raise AssertionError("unreachable")

    def _goes_back(self, newest: Version) -> bool:
        """Return whether a list, which nobody has signed, ends with an older version."""
        reached = self._reached
        if reached is None or newest == reached or newest.number > reached.number:
            return False
        if newest != self._older:
            self._older = newest
            logger.warning(
                "the list of versions in %s ends with version %d, and version %d was here before: "
                "waiting for a newer one, because of the option 'trust'",
                self._place.label,
                newest.number,
                reached.number,
            )
        return True

    def _go(self, listing: Listing) -> None:
        entries = listing.versions
        deltas, whole = self._ways(entries, self._digest)
        if deltas is not None:
            try:
                if self._is_file and len(deltas) > 1:
                    # Which version the file is, only the list says, and nobody has signed that.
                    self._go_beside(deltas, partial(self._apply, deltas[0], self._target))
                    return
                for entry in deltas:
                    self._apply(entry, self._target)
                if not deltas and self._is_trusting:
                    self._check(entries[-1])
                return
            except (*_NO_WAY, errors.Crypto) as error:
                _, whole = self._ways(entries, None)
                if not whole:
                    raise
                logger.warning("%s: all of the model is loaded", str(error))
        if not whole:
            raise errors.InvalidFormat(f"no way leads to the newest version in {self._place.label}")
        if self._is_file and len(whole) > 1:
            self._go_beside(whole, partial(self._load, whole[0]))
            return
        is_newer = self._reached is None or whole[0].number > self._reached.number
        if not (self._is_file or is_newer) and self._is_trusting:
            self._go_by_file(whole)
            return
        self._load(whole[0], self._target)
        for entry in whole[1:]:
            self._apply(entry, self._target)

    def _go_beside(self, entries: list[Entry], begin: Callable[[str], None]) -> None:
        """Make the newest version in another file: the others may be older than the target."""
        with self._unnamed(entries[:-1], begin) as file:
            self._apply(entries[-1], _path_of(file), self._target)

    def _go_by_file(self, entries: list[Entry]) -> None:
        """Make the newest version in a file, and only then change what is in memory.

        The first one may be older than that, and may not lead on: nobody has signed the list.
        """
        uri, options = self._given
        target = os.path.join(tempfile.gettempdir(), f".follow-{secrets.token_hex(8)}.tensors")
        maker = Follower(uri, target, self._threads, options, self._place.encryption())
        pinned = SecretOptions({**maker._target_loads, "digest": entries[-1].digest})
        with (
            maker._unnamed(entries, partial(maker._load, entries[0])) as file,
            self._changing(entries[-1], self._target),
        ):
            load_into(self._target, _path_of(file), threads=self._threads, options=pinned)

    def _unnamed(self, entries: list[Entry], begin: Callable[[str], None]) -> IO[bytes]:
        """Make versions, one after another, and return the last one, as a file without a name.

        So nobody reads it, or puts another in its place, and nothing is left of it.
        """
        path = local_path(self._target)
        folder = tempfile.gettempdir()
        if path:
            there = os.path.realpath(path) if os.path.isfile(path) else os.path.abspath(path)
            folder = os.path.dirname(there)
        file = _made(folder, begin)
        for entry in entries[1:]:
            with file as before:
                file = _made(folder, partial(self._apply, entry, _path_of(before)))
        return file

    def _ways(
        self, entries: list[Entry], digest: str | None
    ) -> tuple[list[Entry] | None, list[Entry]]:
        """Return the deltas to apply to what has a digest, if that is the shorter way, and another.

        The other way begins with a version that is there in whole; it is empty if there is none.
        """
        # A list that nobody has signed may say what the last version is, or that it was an older.
        floor = self._reached.number if self._is_trusting and self._reached is not None else 0
        deltas: list[Entry] | None = None
        whole: list[Entry] = []
        cost = 0
        for i, entry in reversed(list(enumerate(entries))):
            if entry.digest == digest and entry.number >= floor:
                deltas = entries[i + 1 :]
                break
            if entry.whole is not None and not whole:
                whole = entries[i:]
                whole_cost = cost + entry.whole_size
            if entry.delta is None:
                break
            cost += entry.delta_size
        if deltas is not None and whole and whole_cost < cost:
            deltas = None
        return deltas, whole

    def _check(self, entry: Entry) -> None:
        """Raise if a version, which the target is already, is not signed under its number.

        The digest of a model is not of all that a file tells, such as how tensors are nested.
        """
        if entry.delta is not None:
            reader = self._delta_to(entry)
        else:
            assert entry.whole is not None
            whole = self._place.folder.uri(entry.whole)
            reader = torch.classes.tensorizer.Reader(whole, as_text(self._place.loads))
            if reader.digest(self._threads, 2, False) != entry.digest:
                raise errors.HashMismatch(
                    f"{entry.whole!r} in {self._place.label} is not version {entry.number}"
                )
        if not self._is_file:
            return
        if self._digest_of_file(believed=False) != entry.digest:
            raise errors.HashMismatch(
                f"the target is not version {entry.number} of {self._place.label} any more"
            )
        target = torch.classes.tensorizer.Reader(to_uri(self._target), as_text(self._target_loads))
        if not torch.classes.tensorizer._Internals(reader).tells_the_same(target):
            raise errors.HashMismatch(
                "the target has other metadata, or other names, types or ties of tensors, than "
                f"version {entry.number} in {self._place.label}"
            )

    def _delta_to(self, entry: Entry) -> Any:
        """Open the delta to a version, and return a reader of it.

        It is opened once: another signed file may have its name later.
        """
        assert entry.delta is not None
        source = self._place.folder.uri(entry.delta)
        reader = torch.classes.tensorizer.Reader(source, as_text(self._place.loads))
        if reader.metadata().get(_TARGET_KEY) != entry.digest:
            raise errors.InvalidFormat(
                f"{entry.delta!r} in {self._place.label} is no delta to version {entry.number}"
            )
        return reader

    def _apply(self, entry: Entry, base: Any, target: Any = None) -> None:
        """Make a version of the one before, in place of that if there is no ``target``."""
        delta = self._delta_to(entry)
        options: dict[str, Any] = {"threads": self._threads}
        if self._is_file:
            options["base_options"] = self._target_loads
            options["target_options"] = self._saves_of(target)
        with self._changing(entry, base if target is None else target):
            apply_opened(delta, base, target, **options)

    def _load(self, entry: Entry, target: Any) -> None:
        assert entry.whole is not None
        source = self._place.folder.uri(entry.whole)
        pinned = SecretOptions({**self._place.loads, "digest": entry.digest})
        if self._is_trusting and self._is_file and target is self._target:
            # That its number is signed is checked before it counts as tried.
            torch.classes.tensorizer.Reader(source, as_text(self._place.loads)).names()
        with self._changing(entry, target):
            if self._is_file:
                convert(
                    source,
                    target,
                    threads=self._threads,
                    source_options=pinned,
                    target_options=self._saves_of(target),
                )
            elif isinstance(target, MutableMapping) and not target:
                target.update(load(source, threads=self._threads, options=pinned))
            else:
                load_into(target, source, threads=self._threads, options=pinned)

    def _saves_of(self, target: Any) -> Options:
        """Return the options to save to the target, or to what has no name that tells a format."""
        if target is None or target is self._target or "format" in self._target_saves:
            return self._target_saves
        name = os.path.basename(local_path(self._target) or to_uri(self._target)).lower()
        kind = "safetensors" if ".safetensors" in name else "tensors"
        return SecretOptions({**self._target_saves, "format": kind})

    @contextmanager
    def _changing(self, entry: Entry, target: Any) -> Iterator[None]:
        """Know what the target is only when changing it has succeeded."""
        if target is not self._target:
            yield
            return
        if self._is_file:
            self._refuse_stream()
        self._tried = None if self._digest == entry.digest else entry.version
        self._digest, self._is_between = None, True
        yield
        self._digest, self._reached = entry.digest, entry.version
        self._is_between = entry.version != self._version


def _path_of(file: IO[bytes]) -> str:
    """Return a path by which a file is opened anew, and read from its beginning."""
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _made(folder: str, make: Callable[[str], None]) -> IO[bytes]:
    """Return a file in a folder that never has a name, which ``make`` writes."""
    with ExitStack() as failed:
        try:
            os.makedirs(folder, exist_ok=True)
            file = failed.enter_context(tempfile.TemporaryFile(prefix=".follow-", dir=folder))
        except OSError as error:
            raise_own(error)
        make(f"fd:{file.fileno()}")
        failed.pop_all()
        return file
