"""What a ``file_obj`` is: a path, a URI, a descriptor, or any file object of Python.

The library opens what it can reach by itself: paths, URIs, the descriptors behind Python's own
files, the memory of a ``BytesIO``. It calls the methods of everything else.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tensorizer_ops import _python
from tensorizer_ops._compat.schemes import stream_kind
from tensorizer_ops._options import SecretOptions
from tensorizer_ops._targets import local_path, to_uri

# What the library takes.
MOST_THREADS = 1024

# How much a copy moves at a time.
_PIECE = 1 << 20


def resolve(file_obj: Any, mode: str) -> Any:
    """A string that the library opens, or a file object. It is open then, and the caller's."""
    if isinstance(file_obj, int):
        return io.FileIO(file_obj, mode)
    if isinstance(file_obj, str) and stream_kind(file_obj):
        # It knows the defaults that a program expects there.
        from tensorizer_ops import stream_io

        return stream_io.open_stream(file_obj, mode)
    if isinstance(file_obj, str | bytes | os.PathLike):
        # These are paths as they stand: a descriptor is an int, and nothing expands a "~".
        if isinstance(file_obj, str) and file_obj.startswith(("~", "fd:")):
            file_obj = os.path.join(os.curdir, file_obj)
        path = local_path(file_obj) if "w" in mode else None
        if path is not None and _takes_in_order(path):
            return open(path, "wb", buffering=0)
        return to_uri(file_obj)
    return file_obj


# A URI, and the options with which the library opens it.
EnginePlace = tuple[str, dict[str, str]]


def engine_place(place: Any) -> EnginePlace | None:
    """Where the library itself finds what :func:`resolve` gave, at any time; if it can."""
    if isinstance(place, str):
        return place, {}
    found: EnginePlace | None = getattr(place, "_engine_place", lambda: None)()
    return found


@dataclass
class Input:
    """A file that is open for reading."""

    reader: Any
    # Whether it could be opened once more.
    reopens: bool
    # How many threads load, unless the caller says so; 0 is every CPU.
    threads: int = 0


def open_input(place: Any, *, lazy: bool, options: Mapping[str, str]) -> Input:
    """Open what :func:`resolve` or :func:`engine_place` gave.

    Args:
        place: a string, a file object, or an ``EnginePlace``.
        lazy: whether it will be read in any order, and not just once.
        options: for the library, beside those of the place.
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
        # Its bytes as they are; getbuffer() would copy those that it shares with somebody.
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
    # One thread is the caller's own, so that Ctrl-C reaches a read that waits.
    return Input(reader, reopens=False, threads=1)


def _open_descriptor(
    stream: Any, descriptor: int, seekable: bool, options: dict[str, str]
) -> Input:
    reader = torch.classes.tensorizer.Reader(f"fd:{descriptor}", options)
    if not seekable:
        return Input(reader, reopens=False)
    stream.flush()
    # Where the system stands is not where the stream does, which reads ahead.
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, stream.tell(), os.SEEK_SET)
    try:
        reader.names()  # opens it, on a descriptor of its own
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)
    return Input(reader, reopens=True)


class Output:
    """A file that is being written; it is whole after :meth:`close`, and not before."""

    def __init__(self, place: Any, options: Mapping[str, str]) -> None:
        given = SecretOptions(options)
        # What is written to by its methods.
        self._stream: Any = None
        self._spool: Any = None
        # What has to be told that its descriptor has moved.
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
        # What only takes bytes often says that it can seek, and then cannot.
        elif seekable and _can(stream, "readable"):
            self._stream = stream
            keeps_nothing = _keeps_nothing(stream)
            self.writer = _python.write_file(stream, stream.tell(), keeps_nothing, given)
        else:
            # The index stands in front, and is known last.
            import tempfile

            self._stream = stream
            self._spool = tempfile.TemporaryFile()  # noqa: SIM115
            self.writer = torch.classes.tensorizer.Writer(f"fd:{self._spool.fileno()}", given)

    @property
    def is_lost(self) -> bool:
        """Whether somebody has closed what this writes to."""
        return bool(getattr(self._stream, "closed", False))

    def close(self) -> None:
        self.writer.close()
        if self._spool is not None:
            with self._spool as spool:
                spool.seek(0)
                while piece := spool.read(_PIECE):
                    _write_all(self._stream, piece)

    def flush(self) -> None:
        """Make what is written in place a whole file of what has come, and stand behind it."""
        if self._spool is None:
            self.writer._flush()
        if self._moved is not None:
            self._moved.seek(0, io.SEEK_CUR)

    def abort(self) -> None:
        self.writer.abort()
        if self._spool is not None:
            self._spool.close()


def close(stream: Any) -> None:
    """Close what can be closed; None is no stream."""
    if hasattr(stream, "close"):
        stream.close()


def _write_all(stream: Any, piece: bytes) -> None:
    left = memoryview(piece)
    while left:
        done = stream.write(left)
        if not done:
            raise BlockingIOError(f"{type(stream).__name__} does not wait: set it to blocking")
        left = left[done:]


def _unwrap(stream: Any) -> Any:
    """What ``tempfile`` has wrapped."""
    return stream.file if type(stream).__name__ == "_TemporaryFileWrapper" else stream


def _descriptor(stream: Any) -> int | None:
    """That of one of Python's own files. Others have one that gives other bytes than they do."""
    buffered = type(stream) in (io.BufferedReader, io.BufferedWriter, io.BufferedRandom)
    raw = stream.raw if buffered else stream
    return raw.fileno() if type(raw) is io.FileIO else None


def _keeps_nothing(stream: Any) -> bool:
    """Whether it is one of Python's own that keep no view of what they read into or write."""
    if type(stream) is not io.BytesIO and _descriptor(stream) is None:
        return False
    # An object may have methods of its own.
    parts = [stream, getattr(stream, "raw", stream)]
    return all({"readinto", "write"}.isdisjoint(vars(part)) for part in parts)


def _takes_in_order(place: str | int) -> bool:
    """Whether it takes bytes as they come only; of devices, some say that they can seek."""
    try:
        mode = os.stat(place).st_mode
    except (OSError, ValueError):
        return False  # whoever opens it says what is wrong
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _can(stream: Any, what: str) -> bool:
    """Whether it says so; what has no word for it is believed to."""
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
