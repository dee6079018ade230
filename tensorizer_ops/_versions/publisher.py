"""Publishes versions of a model: what has changed since the last one, and sometimes all of it."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import at_least, checked, wrong
from tensorizer_ops._base.options import Metadata, Options
from tensorizer_ops._base.private import PrivateFolder, temporary_folder
from tensorizer_ops._base.signing import Key, copy_signed, kept_key
from tensorizer_ops._base.targets import Target
from tensorizer_ops._front.deltas import delta
from tensorizer_ops._front.inspection import File
from tensorizer_ops._front.load_save import save
from tensorizer_ops._front.rewrite import convert
from tensorizer_ops._versions.listing import (
    Entry,
    Listing,
    Place,
    Unlisted,
    Version,
    digest_of,
    file_name,
    logger,
)


class Publisher:
    """Publishes versions of a model in a place, for :func:`follow`.

    Each version is a delta to the one before, and from time to time all of the model as well. One
    publisher at a time may add versions: with a new one, the others get an error.

    Args:
        uri: a folder, ``s3://bucket/prefix``, ``az://…``, ``redis://host/prefix``, or ``https://``
            for a server that takes PUT and DELETE. The files in it are named by the publisher.
        whole_every: after how many versions all of the model is written again. That is also done
            when the deltas since then are as large as the model. The versions before the last but
            one of these are removed.
        grace: how many seconds the files of a removed version stay, for those who read them.
        scratch: a folder of this machine for the last version, which the next delta is made from,
            and the new one; by default one in the folder for temporary files. The first version
            that another publisher writes is a delta only if it gets the same folder. It is made for
            this user only, or must be one that nobody else may write to.
        fenced: give False to publish to a server that does not heed the conditions of requests. Two
            publishers at the same time may lose versions there.
        sign: the private key that signs every file, as for :func:`tensorizer_ops.sign`, so that
            followers can give the option ``trust``. It has no passphrase.
        threads: how many threads compute; 0 means one for every CPU that the process may use.
        options: options as for loads and for saves. In local folders, ``fsync`` is ``"true"`` if
            they do not say otherwise. With a ``key``, the files in ``scratch`` are encrypted too.

    Raises:
        ValueError: the server does not heed conditions, and ``fenced`` is not False.
        PermissionError: others may write to the folder ``scratch``, or replace it or, without one,
            what is among the temporary files.
    """

    @checked
    def __init__(
        self,
        uri: Target,
        *,
        whole_every: int = 20,
        grace: int = 600,
        scratch: str | os.PathLike[str] | None = None,
        fenced: bool = True,
        sign: Key | None = None,
        threads: int = 0,
        options: Options | None = None,
    ) -> None:
        self._whole_every = at_least("whole_every", whole_every, 1)
        self._grace = at_least("grace", grace, 0)
        self._fenced, self._threads = fenced, threads
        self._place = Place(uri, options)
        self._sign = kept_key(sign, self._place.folder)
        if fenced and not self._place.has_fences():
            raise errors.InvalidArgument(
                f"the server of {self._place.label} replaces files whatever a request says they "
                "must be, so two publishers could lose each other's versions: give fenced=False if "
                "there is never more than one"
            )
        # Before it takes the place over from another publisher.
        with ExitStack() as ends:
            is_signed = sign is not None
            if scratch is None:
                self._scratch = ends.enter_context(temporary_folder(is_signed=is_signed))
            else:
                self._scratch = PrivateFolder(Path(scratch), is_signed=is_signed)
            self._last, self._new, self._delta = (
                self._scratch.path / f"{name}.tensors" for name in ("last", "new", "delta")
            )
            self._id = secrets.token_hex(8)
            # The last version that is listed, and the last one that may be.
            self._number = self._tried = self._claim()
            self._ends = ends.pop_all()
        self._is_closed = self._is_taken_over = False

    def __repr__(self) -> str:
        return f"<tensorizer_ops.Publisher: {self._place.label}>"

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary files. What was published stays."""
        self._is_closed = True
        self._ends.close()

    @checked
    def publish(
        self,
        state: torch.nn.Module | Mapping[str, torch.Tensor] | Target,
        *,
        step: int,
        metadata: Metadata | None = None,
    ) -> Version:
        """Publish a version. Those who follow see it when this returns, or not at all.

        Args:
            state: the model: a module, whose tensors have the names of its ``state_dict()``, a dict
                of tensors, or a file that was saved, such as by all ranks of a job.
            step: the number of the training step.
            metadata: texts to store in the files, for a model in memory.

        Raises:
            FileExistsError: another publisher has begun meanwhile, or uses ``scratch`` now. Nothing
                was published.
            FileNotFoundError: somebody has removed the list of versions. Nothing was published.
            ValueError: somebody has replaced the list by an older one, or one of other numbers.
                Nothing was published, so no number stands for two versions.
        """
        number = at_least("step", step, 0)
        if not isinstance(state, (torch.nn.Module, Mapping, str, bytes, os.PathLike)):
            raise wrong("state", state, "a module, a dict of tensors, a path or a URI")
        known, listing = self._read()
        if known is None:
            raise errors.NotFound(
                f"step {step} was not published to {self._place.label}: the list of versions was "
                "removed; a new Publisher makes another one"
            )
        if self._is_taken_over or listing.publisher != self._id:
            self._throw_taken_over(step)
        if self._is_closed:
            raise errors.InvalidArgument(
                f"step {step} was not published to {self._place.label}: this publisher is closed"
            )
        if not self._number < listing.next_number <= self._tried + 1:
            raise errors.InvalidFormat(
                f"step {step} was not published to {self._place.label}: somebody has replaced the "
                f"list of versions by one whose last version is {listing.next_number - 1}, and not "
                f"{self._number}; a new Publisher goes on from there"
            )
        with self._alone(step):
            return self._publish(state, number, metadata, known, listing)

    @contextmanager
    def _alone(self, step: int) -> Iterator[None]:
        """Let no other publisher use the folder for temporary files."""
        self._scratch.check()
        with open(self._scratch.path / "lock", "wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise errors.FileExists(
                    f"step {step} was not published to {self._place.label}: another publisher "
                    f"writes in {str(self._scratch.path)!r} now; each needs a scratch folder of "
                    "its own"
                ) from None
            for path in (self._new, self._delta):  # also what is no file
                path.unlink(missing_ok=True)
            yield

    def _publish(
        self, state: Any, step: int, metadata: Metadata | None, known: bytes, listing: Listing
    ) -> Version:
        # Before this version takes others off the list, whose files stay until the next one.
        listing.unlisted = self._place.remove(listing.unlisted, time.time() - self._grace)
        self._write_new(state, metadata)
        entry = self._upload(listing, step)
        self._tried = entry.number  # it may be listed although the write fails
        listing.versions.append(entry)
        if entry.whole is not None:
            _unlist_old(listing)
        if not self._place.write(known, listing, self._fenced):
            for name in entry.files():
                self._place.folder.remove_signed(name)
            self._throw_taken_over(step)
        self._number = entry.number
        os.replace(self._new, self._last)
        return entry.version

    def _read(self) -> tuple[bytes | None, Listing]:
        content = self._place.read()
        return content, Listing("") if content is None else self._place.understood(content)

    def _claim(self) -> int:
        """Become the one publisher, and return the number of the last version.

        What the one before has begun to write will be removed.
        """
        known, listing = self._read()
        if known is not None and self._place.needs_key():
            raise errors.Crypto(
                f"the versions in {self._place.label} are encrypted: name their key with the "
                "option 'key'"
            )
        if listing.publisher:
            number = listing.next_number
            names = [file_name(number, listing.publisher, kind) for kind in ("", ".delta")]
            listing.unlisted += [Unlisted(name, time.time()) for name in names]
        listing.publisher = self._id
        if not self._place.write(known, listing, self._fenced):
            raise errors.FileExists(
                f"another publisher to {self._place.label} has begun at the same time"
            )
        return listing.next_number - 1

    def _throw_taken_over(self, step: int) -> None:
        self._is_taken_over = True  # also if somebody puts an earlier list there
        raise errors.FileExists(
            f"step {step} was not published to {self._place.label}: another publisher has begun "
            "since this one did"
        )

    def _write_new(self, state: Any, metadata: Metadata | None) -> None:
        how: Any = {"hashes": "chunked", "threads": self._threads}
        encryption = self._place.encryption()
        if isinstance(state, torch.nn.Module):
            state = state.state_dict()
        if isinstance(state, Mapping):
            save(self._new, state, metadata=metadata, options=encryption, **how)
            return
        if metadata is not None:
            raise errors.InvalidArgument("metadata is for a model in memory: a file has its own")
        loads = self._place.loads
        convert(state, self._new, source_options=loads, target_options=encryption, **how)

    def _upload(self, listing: Listing, step: int) -> Entry:
        """Write the files of a version, which nobody sees until they are listed."""
        number = listing.next_number
        digest = self._digest(self._new)
        whole_size, delta_size = os.path.getsize(self._new), 0
        whole = by_delta = None
        if listing.versions and self._has(listing.versions[-1].digest):
            delta_size = self._write_delta()
            if delta_size < whole_size:
                by_delta = file_name(number, self._id, ".delta")
                self._copy(self._delta, by_delta)
            self._delta.unlink()
        if by_delta is None or self._needs_whole(listing, delta_size):
            whole = file_name(number, self._id)
            self._copy(self._new, whole)
        return Entry(number, step, digest, by_delta, delta_size, whole, whole_size)

    def _write_delta(self) -> int:
        """Write the delta from the last version to the new one, and return its size."""
        delta(
            self._last,
            self._new,
            self._delta,
            threads=self._threads,
            base_options=self._place.decryption(),
            new_options=self._place.decryption(),
            target_options=self._place.encryption(),
        )
        return os.path.getsize(self._delta)

    def _copy(self, path: Path, name: str) -> None:
        """Copy a file to the place, signed, or compared with its hashes on the way."""
        if self._sign is not None:
            self._scratch.check()
            saves = self._place.saves
            copy_signed(self._place.folder, name, path, self._sign, saves, self._threads)
            return
        convert(
            path,
            self._place.folder.uri(name),
            threads=self._threads,
            source_options=self._place.decryption(),
            target_options=self._place.saves,
        )

    def _digest(self, path: Path) -> str:
        return digest_of(File(path, self._place.decryption()), self._threads)

    def _has(self, digest: str) -> bool:
        """Return whether the last version is here."""
        if self._last.is_symlink() or not self._last.is_file():
            return False
        try:
            return self._digest(self._last) == digest
        except errors.Error as error:
            logger.warning("%s: all of the model is published", str(error))
            return False

    def _needs_whole(self, listing: Listing, delta_size: int) -> bool:
        """Return whether the way from the last whole model has become long."""
        deltas = 0
        for count, entry in enumerate(reversed(listing.versions)):
            if count + 1 == self._whole_every:
                return True
            if entry.whole is not None:
                return deltas + delta_size >= entry.whole_size
            deltas += entry.delta_size
        return True


def _unlist_old(listing: Listing) -> None:
    """Keep the versions from the last but one that is there in whole."""
    wholes = [i for i, entry in enumerate(listing.versions) if entry.whole is not None]
    first = wholes[-2] if len(wholes) > 1 else 0
    now = time.time()
    for entry in listing.versions[:first]:
        listing.unlisted += [Unlisted(name, now) for name in entry.files()]
    del listing.versions[:first]
