"""A chain of checkpoints."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import at_least, checked
from tensorizer_ops._base.nested import refuse_key
from tensorizer_ops._base.options import Hashes, Metadata, Options, Verify, texts_of
from tensorizer_ops._base.progress import Progress
from tensorizer_ops._base.signing import Key, kept_key, signed
from tensorizer_ops._base.targets import Target
from tensorizer_ops._chain import lease
from tensorizer_ops._chain.listing import Entry, Listing, is_damage, logger
from tensorizer_ops._chain.store import Store
from tensorizer_ops._dcp import functions, one_process
from tensorizer_ops._dcp.steps import STEP_KEY
from tensorizer_ops._distributed.together import Together, together

# How many steps are tried, as the list may name any number.
_MOST_TRIED = 100
_DAMAGED = "step %d of %s is damaged, and passed over: %s"
Group = ProcessGroup | DeviceMesh | Literal[False] | None


class Step(NamedTuple):
    """A checkpoint of a chain."""

    step: int
    uri: str  # for other functions, such as consolidate()
    is_verified: bool  # whether all of it was compared with its hashes once


class PassedOver(NamedTuple):
    """A checkpoint that was not loaded, because it is damaged."""

    step: int
    reason: str


class Loaded(NamedTuple):
    """What :meth:`Chain.load` has loaded."""

    step: int
    state: Any
    passed_over: list[PassedOver]  # the steps after it


class Chain:
    """The checkpoints of a training run: a folder with a list of steps, and a place for each.

    One process, or the ranks of one job, may save at a time; any number may load meanwhile. In a
    folder of this machine, others that save or prune get an error, or wait.

    Args:
        uri: a folder, ``s3://bucket/prefix``, ``az://…``, ``redis://host/prefix``, or ``https://``
            for a server that takes PUT and DELETE. The files in it are named by the chain.
        keep: how many steps to keep; all if omitted. With a number, a save reads back what it has
            written, and then removes the steps before the last ``keep`` ones that were verified.
        grace: how many seconds the files of a removed step stay. A step that is being loaded by
            somebody who may write to the folder stays anyway, and five minutes longer; the others
            need this time.
        sign: the private key that signs the files of every step, as for
            :func:`tensorizer_ops.sign`, so that loads can give the option ``trust``. It has no
            passphrase. Files are written to the folder for temporary files first.
        hashes, threads, options: as for :func:`tensorizer_ops.checkpoint.save`. In local folders,
            ``fsync`` is ``"true"`` if the options do not say otherwise.
    """

    @checked
    def __init__(
        self,
        uri: Target,
        *,
        keep: int | None = None,
        grace: int = 600,
        hashes: Hashes = "chunked",
        sign: Key | None = None,
        threads: int = 0,
        options: Options | None = None,
    ) -> None:
        if hashes == "none":
            raise errors.InvalidArgument("hashes is 'none', and the steps of a chain are verified")
        self._keep = None if keep is None else at_least("keep", keep, 1)
        self._grace = at_least("grace", grace, 0)
        self._hashes: Hashes = hashes
        self._threads = threads
        self._store = Store.at(uri, options)
        self._sign = kept_key(sign, self._store.folder)
        self._damaged: set[str] = set()  # the names of steps that a load has passed over

    def __repr__(self) -> str:
        return f"<tensorizer_ops.checkpoint.Chain: {self._store.folder.label}>"

    # ---- saves

    @checked
    def save(
        self,
        step: int,
        state: Mapping[Any, Any],
        group: Group = None,
        *,
        metadata: Metadata | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Save a state as a step, as :func:`tensorizer_ops.checkpoint.save` does.

        In a job of ``torch.distributed``, all ranks must call this. The newest step is the one that
        was saved last: a run that went back to an earlier step saves some numbers again.

        Args:
            step: its number.
            state, group, metadata, progress: as for :func:`tensorizer_ops.checkpoint.save`.

        Raises:
            tensorizer_ops.errors.HashMismatch: what was read back is damaged. Nothing was removed.
            CheckpointException: torch's error for failures of ranks.
        """
        ranks = together(group)
        entry, keep = self._begin(ranks, step)
        how = self._how(entry, metadata, progress)
        if ranks.are_alone:
            with self._file(entry, how) as place:
                one_process.save(place, state, **how)
        else:
            functions.save(self._writer(entry, how), state, ranks.group)
        self._finish(ranks, entry, keep)

    @checked
    def save_async(
        self,
        step: int,
        state: Mapping[Any, Any],
        group: Group = None,
        *,
        metadata: Metadata | None = None,
        progress: Progress | None = None,
    ) -> Future[None]:
        """Take a snapshot of a state, and save it in the background, as :meth:`save` does.

        Args:
            step, state, metadata: as for :meth:`save`.
            group: as for :func:`tensorizer_ops.checkpoint.save_async`.
            progress: as for :meth:`save`, called from another thread.

        Returns:
            A future, whose ``result()`` raises what :meth:`save` would. Await it before the next
            save.
        """
        ranks = together(group)
        entry, keep = self._begin(ranks, step)
        how = self._how(entry, metadata, progress)
        saving: Future[None]
        ends = ExitStack()
        if ranks.are_alone:
            how["threads"] = self._threads or 1
            place = ends.enter_context(self._file(entry, how))
            saving = one_process.save_async(place, state, **how)
        else:
            saving = functions.save_async(self._writer(entry, how), state, ranks.group)
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()

        def finish() -> None:
            try:
                with ends:
                    saving.result()
                self._finish(ranks, entry, keep)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        # Not a daemon thread: a program that exits waits for its step.
        threading.Thread(target=finish, name="tensorizer_ops chain").start()
        return done

    def _how(
        self, entry: Entry, metadata: Metadata | None, progress: Progress | None
    ) -> dict[str, Any]:
        """Return the keywords of saves."""
        texts = texts_of(metadata) or {}
        refuse_key(texts, STEP_KEY)
        return {
            "hashes": self._hashes,
            "threads": self._threads,
            "options": self._store.saves,
            "metadata": {**texts, STEP_KEY: entry.name},
            "progress": progress,
        }

    @contextmanager
    def _file(self, entry: Entry, how: dict[str, Any]) -> Iterator[Target]:
        """Give the file that one process saves to. One to be signed is on this machine at first."""
        store = self._store
        if self._sign is None:
            yield store.uri(entry)
            return
        with signed(store.folder, entry.file, self._sign, store.saves) as file:
            how["options"] = file.options
            yield file.path

    def _writer(self, entry: Entry, how: dict[str, Any]) -> Any:
        writer = functions.writer(self._store.uri(entry), **how)
        writer.file_id, writer.sign = entry.file_id, self._sign
        return writer

    def _begin(self, ranks: Together, step: int) -> tuple[Entry, int | None]:
        """List a step that is being saved: if the save does not end, the next one removes it.

        Also returns how many steps the first rank keeps.
        """

        def begin() -> tuple[Entry, int | None]:
            number = at_least("step", step, 0)
            name = f"step-{number}-{secrets.token_hex(8)}"
            entry = Entry(number, name, 0 if ranks.are_alone else ranks.size, time.time())
            with self._store.locked():
                listing = self._store.listing_or_new()
                # Nobody reads what was never complete.
                left = self._store.remove(listing.unfinished, 0)
                listing.removed = left + self._store.remove(listing.removed, self._grace)
                listing.unfinished = [entry]
                self._store.write(listing)
            self._store.make_folder(entry)
            return entry, self._keep

        return ranks.first(begin)

    def _finish(self, ranks: Together, entry: Entry, keep: int | None) -> None:
        """Verify a step if others are to be removed, and list it as saved."""
        if keep is not None:
            for _, error in ranks.each(lambda: self._store.verify(entry, ranks.share)):
                if error is not None:
                    raise error

        def publish() -> None:
            with self._store.locked():
                listing = self._store.listing()
                if entry in listing.unfinished:
                    listing.unfinished.remove(entry)
                    listing.saved = [
                        replace(each, is_verified=False) if each.name in self._damaged else each
                        for each in listing.saved
                    ]
                    saved = replace(entry, since=time.time(), is_verified=keep is not None)
                    listing.saved.append(saved)
                    if keep is not None:
                        _unlist(listing, keep)
                    self._store.write(listing)
                    return
            self._store.remove([entry], 0)
            raise errors.InvalidArgument(
                f"another save to {self._store.folder.label} began before that of step "
                f"{entry.step} had ended, and has removed it: save one step at a time"
            )

        ranks.first(publish)

    # ---- loads

    @checked
    def load(
        self,
        state: dict[Any, Any] | None = None,
        group: Group = None,
        *,
        step: int | None = None,
        device: torch.device | str | int | None = None,
        verify: Verify = "all",
        threads: int = 0,
        progress: Progress | None = None,
    ) -> Loaded:
        """Load the newest step that is not damaged, the same on all ranks.

        A step is verified before it gets into the state; the ranks share its files. One that is
        torn, incomplete or changed is passed over, with a warning in the log. Any other error is
        raised: a server that is away, a wrong key, a state that the checkpoint does not fit.

        In a job of ``torch.distributed``, all ranks must call this, or one with ``group=False``.

        Args:
            state: what to fill, as for :func:`tensorizer_ops.checkpoint.load`. If omitted, all of
                the checkpoint is returned.
            group: the ranks that load the same step; all by default.
            step: the number of the step, if it is not to be the newest. No other is loaded.
            device, threads, progress: as for :func:`tensorizer_ops.checkpoint.load`.
            verify: which hashes to compare.

        Returns:
            The number of the step, the state, and the later steps that were passed over.

        Raises:
            FileNotFoundError: no step was saved there.
            ValueError: all steps are damaged.
        """
        if verify == "none":
            raise errors.InvalidArgument("verify is 'none', and the steps of a chain are verified")
        ranks = together(group)
        passed_over: list[PassedOver] = []
        loaded: list[Any] = []

        def check() -> None:
            self._store.verify(entry, ranks.share, verify, threads)

        def load() -> list[str]:
            if state is None:  # else it was verified
                self._store.check_name(entry)
            # It may have been replaced since.
            wanted = {STEP_KEY: entry.name}
            uri, options = self._store.uri(entry), self._store.loads
            signed: list[str] = []
            how = (device, verify, False, threads, options, progress, wanted, signed)
            loaded[:] = [one_process.load(uri, state, *how, of_ranks=entry.ranks > 0)]
            return signed

        tried: list[str] = []
        while True:
            entry = ranks.first(lambda: self._next(step, tried, passed_over))
            tried.append(entry.name)
            store = self._store
            is_first = ranks.rank == 0
            with lease.renewed(store.folder, entry, store.saves) if is_first else nullcontext():
                reason = None if state is None else self._damage(ranks, check)
                reason = reason or self._damage(ranks, load)
            if reason is None:
                return Loaded(entry.step, loaded[0], passed_over)
            if is_first:
                logger.warning(_DAMAGED, entry.step, store.folder.label, reason)
            self._damaged.add(entry.name)
            passed_over.append(PassedOver(entry.step, reason))

    def _damage(self, ranks: Together, call: Callable[[], object]) -> str | None:
        """Call this on every rank; return the damage that one has found, or raise another error.

        It is damage, too, if they return something else.
        """
        outcomes = ranks.each(call)
        found = [error for _, error in outcomes if error is not None]
        for error in found:
            if not is_damage(error, self._store.loads):
                raise error
        if not found and any(outcome.value != outcomes[0].value for outcome in outcomes):
            return "ranks read different signed checkpoints"
        return str(found[0]) if found else None

    def _next(self, step: int | None, tried: list[str], passed_over: list[PassedOver]) -> Entry:
        """Return the newest step that was not tried, which stays while it is read."""
        label = self._store.folder.label
        while True:
            saved = self._store.listing().saved
            numbered = [each for each in saved if step in (None, each.step)]
            left = [each for each in numbered if each.name not in tried]
            if left and len(tried) < _MOST_TRIED:
                try:
                    self._store.take(left[-1])
                except errors.NotFound:  # it was removed meanwhile
                    tried.append(left[-1].name)
                    continue
                return left[-1]
            if passed_over and step is not None:
                reason = passed_over[0].reason
                raise errors.InvalidFormat(f"step {step} of {label} is damaged: {reason}")
            if passed_over or left:
                reasons = "\n".join(f"step {each.step}: {each.reason}" for each in passed_over)
                which = f"none of the last {len(tried)} steps" if left else "no step"
                raise errors.InvalidFormat(f"{which} of {label} is whole:\n{reasons}")
            if not saved:
                raise errors.NotFound(f"no step was saved to {label} yet")
            there = ", ".join(str(each.step) for each in saved)
            raise errors.NotFound(f"{label} has no step {step}: it has {there}")

    # ---- steps

    def steps(self) -> list[Step]:
        """Return the steps in the order of their saves; none if there is no chain."""
        return [self._step(entry) for entry in self._store.listing_or_new().saved]

    @checked
    def prune(self, keep: int | None = None) -> list[Step]:
        """Remove the steps before the last ones that verify, and return what was removed.

        Verifies the newest step, and those that were not verified before, until there are enough.
        If too few verify, all earlier ones stay. Only one process may call this.

        Args:
            keep: how many steps to keep; as given to the chain if omitted.
        """
        count = self._keep if keep is None else at_least("keep", keep, 1)
        if count is None:
            raise errors.InvalidArgument("give keep=, the number of steps to keep")
        good: dict[str, bool] = {}  # by the names of steps
        for entry in reversed(self._store.listing().saved):
            if sum(good.values()) == count:
                break
            is_new = not entry.is_verified or not any(good.values())
            good[entry.name] = self._is_whole(entry) if is_new else True
        with self._store.locked():
            listing = self._store.listing()
            listing.saved = [
                replace(each, is_verified=good.get(each.name, each.is_verified))
                for each in listing.saved
            ]
            removed = _unlist(listing, count)
            self._store.write(listing)
            listing.removed = self._store.remove(listing.removed, self._grace)
            self._store.write(listing)
        return [self._step(entry) for entry in removed]

    def _is_whole(self, entry: Entry) -> bool:
        try:
            self._store.verify(entry)
        except errors.Error as error:
            if not is_damage(error, self._store.loads):
                raise
            label = self._store.folder.label
            logger.warning(_DAMAGED, entry.step, label, str(error))
            return False
        return True

    def _step(self, entry: Entry) -> Step:
        return Step(entry.step, self._store.folder.shown(entry.place), entry.is_verified)


def _unlist(listing: Listing, keep: int) -> list[Entry]:
    """Take the steps before the last ``keep`` ones that were verified off the list."""
    good, at = 0, len(listing.saved)
    while at and good < keep:
        at -= 1
        good += listing.saved[at].is_verified
    removed = [replace(each, since=time.time()) for each in listing.saved[:at]]
    listing.removed += removed
    del listing.saved[:at]
    return removed
