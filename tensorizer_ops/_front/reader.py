"""``Reader`` for Python: a ``torch.classes.tensorizer.Reader`` as a mapping of names to tensors."""

from __future__ import annotations

import functools
import html
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Literal, NamedTuple

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import checked, is_unicode
from tensorizer_ops._base.devices import named_device
from tensorizer_ops._base.file_objects import label, open_source
from tensorizer_ops._base.options import Hashes, Options, Verify, as_text
from tensorizer_ops._base.progress import Progress, reported
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._base.slices import Slices
from tensorizer_ops._base.tables import MOST_ROWS, table_of_tensors, tensors_in_words
from tensorizer_ops._base.targets import Source, Target, place_of, to_uri
from tensorizer_ops._front.load_save import load_from
from tensorizer_ops._front.modules import IncompatibleKeys, fill
from tensorizer_ops._front.prefetch import Prefetch, start
from tensorizer_ops._front.rewrite import Updated


class _Defaults(NamedTuple):
    device: torch.device | None
    dtype: torch.dtype | None
    verify: Verify
    copy: bool
    threads: int


class Reader(Mapping[str, torch.Tensor]):
    """A file of tensors that stays open: a mapping of names to tensors, in the order of the file.

    ``reader[name]`` loads one tensor, and :meth:`load` many, which is faster than one by one.
    :meth:`values` and :meth:`items` load tensor by tensor, so that few need to be in memory.
    ``len(reader)``, ``name in reader`` and iteration read only the index.

    A path or a URI is opened on first use. Any thread may use a reader. After :meth:`close` or the
    end of a ``with`` block, everything that reads the file raises ``ValueError``; tensors that were
    loaded stay valid. A reader of a path or URI can be pickled.

    Args:
        source: as for :func:`tensorizer_ops.load`. A file object is read from its current position.
            Leave it open, and its position alone, until the reader is closed; the reader does not
            close it. If it cannot seek, each tensor can be loaded once, in the order of the file.
        options: as for :func:`tensorizer_ops.load`.
        device, dtype, verify, copy, threads: as for :func:`tensorizer_ops.load`, for all loads that
            do not say otherwise.
    """

    @checked
    def __init__(
        self,
        source: Source,
        *,
        options: Options | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        verify: Verify = "none",
        copy: bool = False,
        threads: int = 0,
    ) -> None:
        where = None if device is None else named_device(device)
        place = place_of(source)
        opened = open_source(place, options, lazy=True)
        self._reader = opened.reader
        self._defaults = _Defaults(where, dtype, verify, copy, threads or opened.threads)
        self._label = label(source)
        self._has_place = isinstance(place, str)
        self._names: dict[str, None] | None = None
        self._format = ""
        self._is_closed = False

    def __getitem__(self, name: str) -> torch.Tensor:
        """Load one tensor. Raises ``KeyError`` if the file does not have it."""
        return self.load([self._known(name)])[name]

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over the names, in the order of the file."""
        return iter(self._index())

    def __len__(self) -> int:
        """Return how many tensors the file has."""
        return len(self._index())

    def __contains__(self, name: object) -> bool:
        """Return whether the file has a tensor of this name."""
        return name in self._index()

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same object; what they read is not compared."""
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        """Say what is open. Opens nothing."""
        if self._is_closed:
            state = "closed"
        elif self._names is None:
            state = "not read yet"
        else:
            state = f"{self._format}, {tensors_in_words(len(self._names))}"
        return f"<tensorizer_ops.Reader of {self._label}: {state}>"

    def _repr_html_(self) -> str:
        """Return a table of the tensors. Reads the index."""
        if self._is_closed:
            return html.escape(repr(self))
        names = list(self._index())
        listed = zip(names[:MOST_ROWS], self._internals.list().memory_sizes, strict=False)
        rows = (
            (n, self._internals.type_name(n), self._reader.shape(n), size) for n, size in listed
        )
        return table_of_tensors(rows, max(0, len(names) - MOST_ROWS)).html(repr(self)[1:-1])

    def __enter__(self) -> Reader:
        self._must_be_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if not self._has_place:  # the descriptor of a file object may be of another file later
            raise errors.InvalidArgument(
                "only a Reader that was opened by its path or URI can be pickled",
            )
        state = {**self.__dict__, "_names": None, "_is_closed": False}
        state.pop("_internals", None)  # made anew
        return state

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._index())

    @property
    def script_object(self) -> Any:
        """The ``torch.classes.tensorizer.Reader`` of this reader, which TorchScript can use."""
        return self._reader

    def shape(self, name: str) -> torch.Size:
        """Return the shape of a tensor, from the index."""
        return torch.Size(self._reader.shape(self._known(name)))

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of a tensor's elements, from the index."""
        found: torch.dtype = getattr(torch, self._internals.type_name(self._known(name)))
        return found

    def metadata(self) -> dict[str, str]:
        """Return the texts that were stored with the tensors, by key."""
        return dict(self._reader.metadata())

    def stored(self, name: str) -> dict[str, str]:
        """Return how a tensor is stored: ``name``, ``type``, ``module_index``, hashes and offsets.

        The ``type`` is ``parameter``, ``buffer`` or ``state_dict``. Reads the tensor's header.
        """
        return dict(self._reader.stored(self._known(name)))

    @checked
    def load(
        self,
        names: Sequence[str] | None = None,
        *,
        slices: Slices | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        verify: Verify | None = None,
        copy: bool | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> dict[str, torch.Tensor]:
        """Load tensors at once, all of them by default.

        The arguments are those of :func:`tensorizer_ops.load`. ``None`` stands for what the reader
        was made with.
        """
        usual = self._defaults
        with reported(self._reader, progress):
            return load_from(
                self._reader,
                names,
                slices,
                usual.device if device is None else device,
                usual.dtype if dtype is None else dtype,
                usual.verify if verify is None else verify,
                usual.copy if copy is None else copy,
                self._threads(threads),
            )

    @checked
    def load_into(
        self,
        module: torch.nn.Module | MutableMapping[str, torch.Tensor],
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        cast: bool = False,
        strict: bool = True,
        verify: Verify | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> IncompatibleKeys:
        """Fill a module or a dict of tensors, as :func:`tensorizer_ops.load_into` does.

        Tensors keep their device and type unless ``device`` and ``dtype`` are given here.
        """
        compared = self._defaults.verify if verify is None else verify
        with reported(self._reader, progress):
            count = self._threads(threads)
            return fill(self._reader, module, device, dtype, cast, strict, compared, count)

    @checked
    def prefetch(self, names: Sequence[str] | None = None) -> Prefetch:
        """Fetch tensors in the background, all of them by default, so that loads of them are fast.

        Those of a local file go to the page cache. Those of a server go to memory, at most half of
        the option ``memory_ceiling``, and stay there until they are loaded or a later call needs
        the room. Loads may run meanwhile: one that needs what is on its way waits for it, and reads
        the rest itself. Verification and decryption are left to the load.

        Args:
            names: which tensors. In ``result()``, an unknown name raises ``KeyError``; more bytes
                than can be kept, or a source that can be read only once, ``ValueError``.

        Returns:
            A future with ``cancel()``. Its result is ``None``. :meth:`close` and :meth:`cancel` end
            the fetch, too; a program that exits does not wait for it.
        """
        self._must_be_open()
        return start(self._reader, names)

    @checked
    def verify(
        self,
        verify: Verify = "all",
        *,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Compare all tensors with their saved hashes, and keep none of them in memory.

        Raises :class:`tensorizer_ops.errors.HashMismatch` that names all that is damaged.
        """
        with reported(self._reader, progress):
            self._internals.verify(verify, self._threads(threads))

    @checked
    def digest(
        self, *, threads: int | None = None, version: Literal[1, 2] = 1, listed: bool = False
    ) -> str:
        """Return one digest over the content of the file: see :func:`tensorizer_ops.digest`."""
        found: str = self._reader.digest(self._threads(threads), version, listed)
        return found

    @checked
    def rewrite(
        self,
        target: Target,
        *,
        hashes: Hashes = "chunked",
        options: Options | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Write a copy, in another format, encrypted, or with other hashes.

        Args:
            target: the file to write. It appears when the copy is complete and correct.
            hashes: which hashes to write.
            options: as for :func:`tensorizer_ops.save`.
            threads: as for :meth:`load`.
            progress: as for :meth:`load`.
        """
        given = as_text(options)
        with reported(self._reader, progress):
            self._reader.rewrite(to_uri(target), hashes, given, self._threads(threads))

    @checked
    def update(
        self, target: Target, *, threads: int | None = None, progress: Progress | None = None
    ) -> Updated:
        """Bring a local file up to date with this one: see :func:`tensorizer_ops.update`."""
        with reported(self._reader, progress):
            return Updated(*self._reader.update(to_uri(target), self._threads(threads)))

    def stats(self) -> dict[str, float]:
        """Return counts and seconds of all loads so far: see ``docs/remote.md``."""
        return dict(self._reader.stats())

    def progress(self) -> tuple[int, int]:
        """Return the bytes moved and the bytes to move of the running calls, or of the last one."""
        done, total = self._reader.progress()
        return done, total

    def cancel(self) -> None:
        """End the running calls, which raise :class:`tensorizer_ops.errors.Cancelled`."""
        self._reader.cancel()

    def close(self) -> None:
        """Close the file and end the running calls."""
        self._is_closed = True
        self._reader.close()

    @functools.cached_property
    def _internals(self) -> Any:
        return torch.classes.tensorizer._Internals(self._reader)

    def _must_be_open(self) -> None:
        if self._is_closed:
            raise errors.InvalidArgument(f"the reader of {self._label} is closed")

    def _index(self) -> dict[str, None]:
        """Return the names, in the order of the file. Reads the index once."""
        self._must_be_open()
        if self._names is None:
            names = dict.fromkeys(self._reader.names())
            version = self._internals.version()
            self._format = f"tensors format {version}" if version else "safetensors"
            self._names = names
        return self._names

    def _known(self, name: str) -> str:
        """Return the name of a tensor in the file; raise ``KeyError`` for any other."""
        if name in self:
            return name
        if not isinstance(name, str) or not is_unicode(name):
            raise errors.NoSuchTensor(
                f"{self._label} has no tensor {quoted(name)}, because names are str of Unicode",
            )
        self._reader.shape(name)  # raises the error
        return name

    def _threads(self, threads: int | None) -> int:
        return self._defaults.threads if threads is None else threads
