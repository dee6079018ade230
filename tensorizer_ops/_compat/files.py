"""Opens a ``file_obj``: a path, a URI, a descriptor, or any Python file object.

The library itself opens paths, URIs, the descriptors of Python's own file objects and the memory of
a ``BytesIO``. It calls the methods of all other objects.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tensorizer_ops import _python, errors
from tensorizer_ops._compat.schemes import stream_kind
from tensorizer_ops._options import SecretOptions
from tensorizer_ops._targets import local_path, to_uri

# The most threads that the library accepts.
MOST_THREADS = 1024

# The bytes that a copy moves at a time.
_PIECE = 1 << 20


def resolve(file_obj: Any, mode: str) -> Any:
    """Return a URI string that the library opens, or an open file object owned by the caller."""
    if isinstance(file_obj, int):
        return io.FileIO(file_obj, mode)
    if isinstance(file_obj, str) and stream_kind(file_obj):
        # open_stream() has the defaults of tensorizer, for endpoints and keys of S3 for example.
        from tensorizer_ops import stream_io

        return stream_io.open_stream(file_obj, mode)
    if isinstance(file_obj, str | bytes | os.PathLike):
        # Such strings are literal paths: descriptors are ints here, and "~" is not expanded.
        if isinstance(file_obj, str) and file_obj.startswith(("~", "fd:")):
            file_obj = os.path.join(os.curdir, file_obj)
        path = local_path(file_obj) if "w" in mode else None
        if path is not None and _takes_in_order(path):
            return open(path, "wb", buffering=0)
        return to_uri(file_obj)
    return file_obj


# A URI, and the options to open it with.
EnginePlace = tuple[str, dict[str, str]]


def engine_place(place: Any) -> EnginePlace | None:
    """Return how the library can reopen a result of :func:`resolve`, or ``None`` if it cannot."""
    if isinstance(place, str):
        return place, {}
    found: EnginePlace | None = getattr(place, "_engine_place", lambda: None)()
    return found


@dataclass
class Input:
    """A file that is open for reading."""

    reader: Any
    # Whether the file can be opened again.
    reopens: bool
    # The default number of threads; 0 means one for every CPU.
    threads: int = 0


def open_input(place: Any, *, lazy: bool, options: Mapping[str, str]) -> Input:
    """Open a result of :func:`resolve` or :func:`engine_place`.

    Args:
        place: a string, a file object, or an ``EnginePlace``.
        lazy: whether it will be read in any order, and more than once.
        options: options for the library, which take precedence over those of the place.
    """
    given = SecretOptions(options)
    known: EnginePlace | None = place if isinstance(place, tuple) else engine_place(place)
    if known is not None:
        uri, of_stream = known
        given = SecretOptions({**of_stream, **given})
        engine_reader = getattr(place, "_engine_reader", torch.classes.tensorizer.Reader)
        reader = engine_reader(uri, given)
        return Input(reader, reopens=True)
    stream = _unwrap(place)
    _check_binary(stream, "readable", "read")
    if type(stream) is io.BytesIO:
        # getvalue() shares the bytes; getbuffer() would copy them if they are already shared.
        return Input(_python.read_buffer(stream.getvalue(), stream.tell(), given), reopens=False)
    seekable = _is_seekable(stream)
    if lazy and not seekable:
        raise ValueError("lazy_load needs a file object that can seek")
    descriptor = _descriptor(stream)
    if descriptor is not None and (seekable or type(stream) is io.FileIO):
        return _open_descriptor(stream, descriptor, seekable, given)
    start = stream.tell() if seekable else 0
    keeps_nothing = _keeps_nothing(stream)
    reader = _python.read_file(stream, start, seekable, not lazy, keeps_nothing, given)
    # A single thread is the caller's own, so that Ctrl-C interrupts a blocked read.
    return Input(reader, reopens=False, threads=1)


def _open_descriptor(
    stream: Any, descriptor: int, seekable: bool, options: dict[str, str]
) -> Input:
    reader = torch.classes.tensorizer.Reader(f"fd:{descriptor}", options)
    if not seekable:
        return Input(reader, reopens=False)
    stream.flush()
    # The descriptor's position differs from the stream's, because the stream reads ahead.
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, stream.tell(), os.SEEK_SET)
    try:
        reader.names()  # opens the file, on a descriptor of its own
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)
    return Input(reader, reopens=True)


class Output:
    """A file that is being written. It is complete only after :meth:`close`."""

    def __init__(self, place: Any, options: Mapping[str, str]) -> None:
        # The classes of this API write one format, whatever the name of the file.
        if options.get("format", "tensors") != "tensors":
            raise errors._new(
                errors.InvalidArgument,
                "a TensorSerializer writes .tensors files only: use tensorizer_ops.save()",
            )
        given = SecretOptions({**options, "format": "tensors"})
        # The file object whose methods are called, if any.
        self._stream: Any = None
        self._spool: Any = None
        # The file object whose buffer must be synchronized after its descriptor has moved.
        self._moved: Any = None
        if isinstance(place, str):
            self.writer = torch.classes.tensorizer.Writer(place, given)
            return
        stream = _unwrap(place)
        _check_binary(stream, "writable", "write")
        hand_over = getattr(stream, "_hand_over", None)
        descriptor = _descriptor(stream)
        seekable = _is_seekable(stream) and (descriptor is None or not _takes_in_order(descriptor))
        if hand_over is not None and (found := hand_over()) is not None:
            uri, of_stream = found
            self.writer = torch.classes.tensorizer.Writer(uri, {**of_stream, **given})
        elif seekable and descriptor is not None:
            stream.flush()
            os.lseek(descriptor, stream.tell(), os.SEEK_SET)
            self._moved = stream
            self.writer = torch.classes.tensorizer.Writer(f"fd:{descriptor}", given)
        # Write-only objects often claim to be seekable and are not, so require readable() as well.
        elif seekable and _can(stream, "readable"):
            self._stream = stream
            keeps_nothing = _keeps_nothing(stream)
            self.writer = _python.write_file(stream, stream.tell(), keeps_nothing, given)
        else:
            # The index comes first in the file but is known last, so write to a temporary file.
            import tempfile

            self._stream = stream
            self._spool = tempfile.TemporaryFile()  # noqa: SIM115
            self.writer = torch.classes.tensorizer.Writer(f"fd:{self._spool.fileno()}", given)

    @property
    def is_lost(self) -> bool:
        """Whether the file object to write to was closed."""
        return bool(getattr(self._stream, "closed", False))

    def close(self) -> None:
        self.writer.close()
        if self._spool is not None:
            with self._spool as spool:
                spool.seek(0)
                while piece := spool.read(_PIECE):
                    _write_all(self._stream, piece)

    def flush(self) -> None:
        """Complete a file that is written in place, and move the file object to its end."""
        if self._spool is None:
            self.writer._flush()
        if self._moved is not None:
            self._moved.seek(0, io.SEEK_CUR)

    def abort(self) -> None:
        self.writer.abort()
        if self._spool is not None:
            self._spool.close()


def close(stream: Any) -> None:
    """Close a stream that has ``close()``; ``None`` is allowed."""
    if hasattr(stream, "close"):
        stream.close()


def _write_all(stream: Any, piece: bytes) -> None:
    left = memoryview(piece)
    while left:
        done = stream.write(left)
        if not done:
            raise BlockingIOError(
                f"{type(stream).__name__} is in non-blocking mode: set it to blocking mode"
            )
        left = left[done:]


def _unwrap(stream: Any) -> Any:
    """Return the file inside a wrapper of ``tempfile``, or the stream itself."""
    return stream.file if type(stream).__name__ == "_TemporaryFileWrapper" else stream


def _descriptor(stream: Any) -> int | None:
    """Return the descriptor of one of Python's own file objects, otherwise ``None``.

    Other classes may have a descriptor whose bytes differ from theirs (a ``GzipFile`` for example).
    """
    buffered = type(stream) in (io.BufferedReader, io.BufferedWriter, io.BufferedRandom)
    raw = stream.raw if buffered else stream
    return raw.fileno() if type(raw) is io.FileIO else None


def _keeps_nothing(stream: Any) -> bool:
    """Return whether the stream is known not to keep views of buffers that are passed to it.

    True for Python's own file objects.
    """
    if type(stream) is not io.BytesIO and _descriptor(stream) is None:
        return False
    # The instance may override these methods.
    parts = [stream, getattr(stream, "raw", stream)]
    return all({"readinto", "write"}.isdisjoint(vars(part)) for part in parts)


def _takes_in_order(place: str | int) -> bool:
    """Return whether a file must be written in order: pipes and character devices.

    Checked by type because some devices claim to be seekable.
    """
    try:
        mode = os.stat(place).st_mode
    except (OSError, ValueError):
        return False  # opening it will report the error
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _can(stream: Any, what: str) -> bool:
    """Return the result of the stream's method ``what()``, or true if it has no such method."""
    ask = getattr(stream, what, None)
    return ask is None or bool(ask())


def _is_seekable(stream: Any) -> bool:
    return hasattr(stream, "seek") and hasattr(stream, "tell") and _can(stream, "seekable")


def _check_binary(stream: Any, ability: str, method: str) -> None:
    if not hasattr(stream, method):
        raise TypeError(
            f"file_obj is {type(stream).__name__}, and must be a path, a URI, a descriptor or a "
            f"file object with {method}()"
        )
    if isinstance(stream, io.TextIOBase) or not _can(stream, ability):
        mode = getattr(stream, "mode", None)
        known = f", and its mode is {mode!r}" if isinstance(mode, str) else ""
        raise ValueError(f"file_obj must be {ability} and binary{known}")
