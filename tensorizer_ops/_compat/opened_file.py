"""The file of a TensorDeserializer: open until all is loaded, and reopened if needed later."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.file_objects import MOST_THREADS, Input, engine_place, open_input
from tensorizer_ops._base.options import Options, kept
from tensorizer_ops._compat import files
from tensorizer_ops._compat.catalog import Catalog
from tensorizer_ops._compat.crypt_params import DecryptionParams
from tensorizer_ops._compat.named_key import named
from tensorizer_ops._compat.types import FileFeatureFlags, FileHeader


class OpenedFile:
    """Owns the reader of a ``file_obj``, and the file object if it is one. Closes them together."""

    def __init__(
        self, file_obj: Any, options: Options | None, key: DecryptionParams | None, *, lazy: bool
    ) -> None:
        self._options = kept(options)
        self._key = key
        self._is_closed = False
        place = files.resolve(file_obj, "rb")
        # None if the library itself opens the file.
        self._stream: Any = None if isinstance(place, str) else place
        try:
            self._place = engine_place(place)
            self._input, self.header = self._open(place, lazy)
            self._signed_as = self.internals.signed_as()
        except BaseException:
            files.close(self._stream)
            raise
        self.is_open = True

    def _open(self, place: Any, lazy: bool) -> tuple[Input, FileHeader]:
        with named(self._key) as key, contextlib.ExitStack() as on_error:
            opened = open_input(place, lazy=lazy, options={**self._options, **key})
            on_error.callback(opened.reader.close)
            # Opens the file. This must happen while the key has its name.
            file = torch.classes.tensorizer._Internals(opened.reader)
            flags = FileFeatureFlags(file.flags())
            size, count = file.claimed_size(), file.tensor_count()
            header = FileHeader(file.version(), flags, size, count)
            has_key = self._key is not None or "key" in self._options
            if FileFeatureFlags.encrypted in header.feature_flags and not has_key:
                raise errors.Crypto("the file is encrypted, and no key was given (encryption=)")
            on_error.pop_all()
        return opened, header

    @property
    def is_signed(self) -> bool:
        return bool(self._signed_as)

    @property
    def reader(self) -> Any:
        """The reader. Once the file is closed, only what it holds in memory is available."""
        return self._input.reader

    @functools.cached_property
    def internals(self) -> Any:
        return torch.classes.tensorizer._Internals(self.reader)

    @property
    def response_headers(self) -> Any:
        """The response headers of a web server; ``None`` for other files."""
        return getattr(self._stream, "response_headers", None)

    def choose_threads(self, num_readers: int | None, count: int) -> int:
        """Return how many threads load ``count`` tensors; 0 means one for every CPU."""
        if num_readers is None:
            return self._input.threads
        if num_readers < 1:
            raise ValueError(f"num_readers is {num_readers}, and must be positive")
        threads = min(num_readers, max(count, 1), MOST_THREADS)
        if threads > 1 and not self._input.is_shared:
            raise ValueError(
                "this kind of file_obj cannot be opened again, so only one thread reads it: "
                "num_readers must be 1 or None"
            )
        return threads

    def must_be_open(self) -> None:
        if not self.is_open:
            raise RuntimeError("the TensorDeserializer was closed before these tensors were loaded")

    @contextlib.contextmanager
    def opened(self, catalog: Catalog) -> Iterator[Any]:
        """Yield the reader; if the file is closed, reopen it while the block runs."""
        if self.is_open:
            yield self.reader
            return
        if self._is_closed:
            raise RuntimeError("the TensorDeserializer is closed")
        if self._place is None:
            raise RuntimeError(
                "the file_obj was closed when everything was loaded, and cannot be opened again: "
                "give a path or a URI, or lazy_load=True"
            )
        reader = self._open(self._place, lazy=True)[0].reader
        try:
            replaced = "the file is not the one that was loaded: it was replaced"
            if not catalog.is_of(reader):
                raise RuntimeError(replaced)
            if torch.classes.tensorizer._Internals(reader).signed_as() != self._signed_as:
                raise errors.HashMismatch(replaced)
            yield reader
        finally:
            reader.close()

    def finish(self) -> None:
        """Close the reader and the file object. :meth:`opened` may reopen the file."""
        if self.is_open:
            self.is_open = False
            self.reader.close()
        files.close(self._stream)

    def close(self) -> None:
        """Close the reader and the file object permanently."""
        self._is_closed = True
        self.finish()
