"""Files on servers as Python file objects, for reading."""

from __future__ import annotations

import io
import time
from email.message import Message
from typing import TYPE_CHECKING, Any

import torch

from tensorizer_ops import _core
from tensorizer_ops._base.internals import reader_of
from tensorizer_ops._base.options import SecretOptions, as_pairs, kept

if TYPE_CHECKING:
    from typing_extensions import Buffer

_READ_AHEAD = 16 << 20
# The size of the buffer that collects small reads by Python.
_BUFFER = 64 << 10


class _RemoteRaw(io.RawIOBase):
    """The unbuffered file object: the bytes of a file on a server, at any position."""

    mode = "rb"

    def __init__(
        self, uri: str, options: SecretOptions, begin: int, end: int | None, read_ahead: int
    ) -> None:
        self._uri = uri
        self.name = _core.without_secrets(uri)
        self.read_operations = 0
        self.error_context: list[str] = []
        self._source: _core.RemoteBytes | None = None
        self._source = _core.RemoteBytes(uri, as_pairs(options), begin, end, read_ahead)
        self.headers = self._source.headers()
        size = self._source.size()
        if size is None:  # without range requests, the size may still be in the headers
            size = next((int(v) for k, v in self.headers if k == "content-length"), None)
        self._size = size if end is None or size is None else min(size, end)
        self._position = begin

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._open_source()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._open_source()
        if whence == io.SEEK_SET:
            position = offset
        elif whence == io.SEEK_CUR:
            position = self._position + offset
        elif whence == io.SEEK_END:
            position = self._last() + offset
        else:
            raise ValueError(f"whence is {whence!r}, and must be 0, 1 or 2")
        if position < 0:
            raise ValueError(f"the position is {position}, and must not be negative")
        self._position = position
        return position

    def readinto(self, buffer: Buffer, /) -> int:
        source = self._open_source()
        try:
            count = source.read_into(self._position, buffer)
        except OSError as error:
            self._add_context(error)
            raise
        if count == 0 and len(memoryview(buffer)) > 0:
            self._check_end()
        self._moved(count)
        return count

    def readall(self) -> bytes:
        source = self._open_source()
        if self._size is None:
            return super().readall()
        try:
            found = source.read(self._position, max(0, self._size - self._position))
        except OSError as error:
            self._add_context(error)
            raise
        self._moved(len(found))
        self._check_end()
        return found

    def reader(self, options: SecretOptions) -> Any:
        source = self._open_source().shared_source(as_pairs(options))
        if source is None:
            return torch.classes.tensorizer.Reader(self._uri, options)
        return reader_of(source, options, self._uri)

    def section_reader(self, start: int, end: int | None, options: SecretOptions) -> Any | None:
        source = self._open_source().section(start, end)
        return None if source is None else reader_of(source, options)

    def close(self) -> None:
        self._source = None
        super().close()

    def _open_source(self) -> _core.RemoteBytes:
        if self._source is None:
            raise ValueError("the stream is closed")
        return self._source

    def _last(self) -> int:
        if self._size is None:
            raise io.UnsupportedOperation("the server does not send the size of the file")
        return self._size

    def _check_end(self) -> None:
        if self._size is not None and self._position < self._size:
            raise OSError(
                f"{self.name!r} has no byte {self._position}, though it goes on to byte "
                f"{self._size}: the keys between are missing"
            )

    def _moved(self, count: int) -> None:
        self._position += count
        self.read_operations += 1

    def _add_context(self, error: OSError) -> None:
        if self.error_context:
            raise OSError("\n".join([str(error), *self.error_context])) from error


class RemoteFile(io.BufferedReader):
    """A file on a server, open for reading.

    Sequential reads read ahead, with several requests in parallel. A seek sends no request; only
    the next read does.
    """

    raw: _RemoteRaw

    def __init__(
        self,
        uri: str,
        options: SecretOptions,
        begin: int | None,
        end: int | None,
        buffer_size: int | None,
    ) -> None:
        if begin is not None and begin < 0:
            raise ValueError(f"begin is {begin}, and must not be negative")
        if end is not None and end <= (begin or 0):
            raise ValueError(f"end is {end}, and must come after begin, which is {begin or 0}")
        ahead = _READ_AHEAD if buffer_size is None or buffer_size < 0 else buffer_size
        began = time.monotonic()
        raw = _RemoteRaw(uri, options, begin or 0, end, ahead)
        self._opening_took = time.monotonic() - began
        super().__init__(raw, _BUFFER)
        # The position after the last seek, and the bytes that were read before that seek.
        self._run_began = begin or 0
        self._read_before = 0
        self._skipped = 0
        self._uri = uri
        self._options = SecretOptions(kept(options))
        self._end = end

    # Overridden to give the arguments the names that tensorizer's streams have.

    def read(self, size: int | None = -1) -> bytes:
        return super().read(size)

    def readinto(self, ba: Buffer) -> int:
        return super().readinto(ba)

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        before = self.tell()
        after = super().seek(position, whence)
        self._read_before += before - self._run_began
        self._run_began = after
        self._skipped += max(0, after - before)
        return after

    def close(self) -> None:
        if not self.closed and hasattr(self, "_run_began"):
            self._read_before = self.bytes_read
        super().close()

    @property
    def bytes_read(self) -> int:
        """The number of bytes read, without those read ahead; bytes read twice count twice."""
        return self._read_before + (0 if self.closed else self.tell() - self._run_began)

    @property
    def bytes_skipped(self) -> int:
        """The number of bytes skipped by seeking forward."""
        return self._skipped

    @property
    def read_operations(self) -> int:
        """The number of reads that reached the library."""
        return self.raw.read_operations

    def _engine_place(self) -> tuple[str, dict[str, str]] | None:
        """Return a URI and options for a ``Reader`` of the same bytes, or ``None``.

        ``None`` unless the file is open, at position 0 and without an ``end``.
        """
        if self.closed or self._end is not None or self.tell() != 0:
            return None
        return self._uri, SecretOptions(self._options)

    def _engine_reader(self, _uri: str, options: SecretOptions) -> Any:
        """Return such a ``Reader``. It requests no bytes that have already been read ahead here."""
        return self.raw.reader(options)

    def _engine_section(self, options: SecretOptions) -> Any | None:
        """Return a ``Reader`` of the file at the position; ``None`` if it comes only in order."""
        return self.raw.section_reader(self.tell(), self._end, options)


class WebFile(RemoteFile):
    """A file on a web server or in S3, open for reading."""

    def __init__(
        self,
        uri: str,
        options: SecretOptions,
        begin: int | None,
        end: int | None,
        buffer_size: int | None,
    ) -> None:
        super().__init__(uri, options, begin, end, buffer_size)
        self.response_headers = Message()
        for name, value in self.raw.headers:
            self.response_headers[name] = value
        self.popen_latencies = [0.0]
        self.http_response_latencies = [self._opening_took]

    def register_error_context(self, msg: str) -> None:
        """Append ``msg`` to the error message of any later read that fails."""
        self.raw.error_context.append(msg)
