"""Reads and writes file objects of Python, wherever a path or a URI can be given.

The library itself opens paths, URIs, the descriptors of Python's own file objects and the memory of
a ``BytesIO``. It calls the methods of all other objects.
"""

from __future__ import annotations

import io
import operator
import os
import stat
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tensorizer_ops import _core, errors
from tensorizer_ops._base.arguments import wrong
from tensorizer_ops._base.internals import reader_of, writer_to
from tensorizer_ops._base.options import Options, SecretOptions, as_text
from tensorizer_ops._base.targets import Source, place_of

# The most threads that the library accepts.
MOST_THREADS = 1024

# The bytes that a copy moves at a time.
_PIECE = 1 << 20


# A URI, and the options to open it with.
EnginePlace = tuple[str, dict[str, str]]


def engine_place(place: Any) -> EnginePlace | None:
    """Return how the library can open a URI or a file object again; ``None`` if it cannot."""
    if isinstance(place, str):
        return place, {}
    found: EnginePlace | None = getattr(place, "_engine_place", lambda: None)()
    return found


@dataclass
class Input:
    """A file that is open for reading."""

    reader: Any
    # Whether several threads can read the file.
    is_shared: bool
    # The default number of threads; 0 means one for every CPU.
    threads: int = 0


def open_input(place: Any, *, lazy: bool, options: Mapping[str, str]) -> Input:
    """Open a file for reading.

    Args:
        place: a URI, a file object, a ``bytearray``, a ``memoryview`` or an ``EnginePlace``.
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
        return Input(reader, is_shared=True)
    section = getattr(place, "_engine_section", lambda options: None)(given)
    if section is not None:
        return Input(section, is_shared=True)
    if isinstance(place, bytearray | memoryview):
        return Input(reader_of(_core.buffer_source(place, 0), given), is_shared=False)
    stream = _unwrap(place)
    _check_binary(stream, "readable", "read")
    if type(stream) is io.BytesIO:
        # getvalue() shares the bytes; getbuffer() would copy them if they are already shared.
        source = _core.buffer_source(stream.getvalue(), _position(stream))
        return Input(reader_of(source, given), is_shared=False)
    seekable = _is_seekable(stream)
    if lazy and not seekable:
        raise ValueError("lazy_load needs a file object that can seek")
    descriptor = _descriptor(stream)
    if descriptor is not None and (seekable or type(stream) is io.FileIO):
        return _open_descriptor(stream, descriptor, seekable, given)
    start = _position(stream) if seekable else 0
    source = _core.file_source(stream, start, seekable, not lazy, _keeps_nothing(stream))
    # A single thread is the caller's own, so that Ctrl-C interrupts a blocked read.
    return Input(reader_of(source, given), is_shared=False, threads=1)


def open_source(source: Source, options: Options | None, *, lazy: bool = False) -> Input:
    """Open what a caller gave: a path, a URI or a file object.

    ``lazy`` asks for a reader that reads in any order and more than once, as far as ``source`` can.
    """
    place = place_of(source)
    lazy = lazy and (isinstance(place, str) or _is_seekable(_unwrap(place)))
    return open_input(place, lazy=lazy, options=as_text(options))


def _open_descriptor(
    stream: Any, descriptor: int, seekable: bool, options: dict[str, str]
) -> Input:
    reader = torch.classes.tensorizer.Reader(f"fd:{descriptor}", options)
    if not seekable:
        return Input(reader, is_shared=False)
    stream.flush()
    # The descriptor's position differs from the stream's, because the stream reads ahead.
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, stream.tell(), os.SEEK_SET)
    try:
        reader.names()  # opens the file, on a descriptor of its own
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)
    return Input(reader, is_shared=True)


class Destination:
    """Where the bytes of a new file go.

    Attributes:
        uri: the place that the library opens; ``None`` if it calls the methods of ``stream``.
        options: options to open that place with.
        stream: the file object whose methods are called, also to copy a temporary file; else
            ``None``.
        threads: the default number of threads; 0 means one for every CPU.
    """

    def __init__(self, place: Any, *, in_order: bool) -> None:
        """Prepare a file object, or a URI, for writing from its current position.

        ``in_order`` says whether the file is written from its beginning to its end, so that a pipe
        can take it.
        """
        self.uri: str | None = None
        self.options: dict[str, str] = {}
        self.stream: Any = None
        self.threads = 0
        self._spool: Any = None
        # The file object whose buffer must be synchronized after its descriptor has moved.
        self._moved: Any = None
        if isinstance(place, str):
            self.uri = place
            return
        stream = _unwrap(place)
        _check_binary(stream, "writable", "write")
        hand_over = getattr(stream, "_hand_over", None)
        descriptor = _descriptor(stream)
        seekable = _is_seekable(stream) and (descriptor is None or not takes_in_order(descriptor))
        if hand_over is not None and (found := hand_over()) is not None:
            # The name of a file object does not matter, and that of its file would.
            self.uri, self.options = found[0], {"format": "tensors", **found[1]}
        elif descriptor is not None and (seekable or in_order):
            stream.flush()
            if seekable:
                os.lseek(descriptor, stream.tell(), os.SEEK_SET)
                self._moved = stream
            self.uri = f"fd:{descriptor}"
        # Write-only objects often claim to be seekable and are not, so require readable() as well.
        elif seekable and _can(stream, "readable"):
            self.stream = stream
            # A single thread is the caller's own, so that Ctrl-C interrupts a blocked write.
            self.threads = 0 if _keeps_nothing(stream) else 1
        else:
            # The index comes first in the file but is known last, so write to a temporary file.
            import tempfile

            self.stream = stream
            self._spool = tempfile.TemporaryFile()  # noqa: SIM115
            self.uri = f"fd:{self._spool.fileno()}"

    @property
    def is_spooled(self) -> bool:
        """Whether a temporary file is written first."""
        return self._spool is not None

    def sink(self) -> _core.HandedOver:
        """Return a sink that calls the methods of the file object."""
        return _core.file_sink(self.stream, _position(self.stream), _keeps_nothing(self.stream))

    def finish(self) -> None:
        """Copy a temporary file to the file object, and close it."""
        if self._spool is not None:
            with self._spool as spool:
                spool.seek(0)
                while piece := spool.read(_PIECE):
                    _write_all(self.stream, piece)
        elif type(self.stream) is io.BytesIO:
            self.stream.truncate()  # as a file is

    def synchronize(self) -> None:
        """Move the file object to the position of its descriptor."""
        if self._moved is not None:
            self._moved.seek(0, io.SEEK_CUR)

    def discard(self) -> None:
        """Close a temporary file."""
        if self._spool is not None:
            self._spool.close()


class Output:
    """A file that a Writer writes. It is complete only after :meth:`close`."""

    def __init__(
        self, place: Any, options: Mapping[str, str], metadata: Mapping[str, str] | None = None
    ) -> None:
        self._is_complete = False
        self._to = Destination(place, in_order=False)
        given = SecretOptions({**self._to.options, **options})
        if given.get("threads", "0") == "0":
            given["threads"] = str(self._to.threads)
        try:
            if self._to.uri is not None:
                self.writer = torch.classes.tensorizer.Writer(self._to.uri, given, metadata)
            else:
                self.writer = writer_to(self._to.sink(), given, metadata)
        except BaseException:
            self._to.discard()
            raise

    @property
    def is_lost(self) -> bool:
        """Whether the file object to write to was closed."""
        return bool(getattr(self._to.stream, "closed", False))

    def close(self) -> None:
        self.writer.close()
        if not self._is_complete:
            self._is_complete = True
            self._to.finish()
            self._to.synchronize()

    def flush(self) -> None:
        """Complete a file that is written in place, and move the file object to its end."""
        if not self._to.is_spooled:
            self.writer._flush()
        self._to.synchronize()

    def abort(self) -> None:
        self.writer.abort()
        self._to.discard()


def label(given: Any) -> str:
    """Return how to show what a caller gave: a path, a URI without secrets, or a type."""
    if isinstance(given, int):
        return f"descriptor {given}"
    place = place_of(given)
    if not isinstance(place, str):
        return f"a {type(given).__name__}"
    text = os.fsdecode(given)
    if not isinstance(given, str) and "://" not in text:
        return repr(os.fspath(given))
    return repr(_core.without_secrets(text.encode(errors="backslashreplace").decode()))


def _write_all(stream: Any, piece: bytes) -> None:
    left = memoryview(piece)
    while left:
        done = stream.write(left)
        if not done:
            raise BlockingIOError(
                f"{type(stream).__name__} is in non-blocking mode: set it to blocking mode"
            )
        if not 0 < _integer(stream, "write", done) <= len(left):
            raise errors.InvalidArgument(
                f"{type(stream).__name__}.write() returned {done} for {len(left)} bytes"
            )
        left = left[done:]


def _integer(stream: Any, method: str, returned: Any) -> int:
    """Return what a method returned, if it is a number."""
    # A bool that says "done" would count as one byte.
    if isinstance(returned, bool) or not isinstance(returned, typing.SupportsIndex):
        raise wrong(f"what {type(stream).__name__}.{method}() returned", returned, "int")
    return operator.index(returned)


def _position(stream: Any) -> int:
    """Return the position of a stream that can seek."""
    position = _integer(stream, "tell", stream.tell())
    if not 0 <= position < 1 << 63:
        raise errors.InvalidArgument(f"{type(stream).__name__}.tell() returned {position}")
    return position


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


def takes_in_order(place: str | int) -> bool:
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
        # Such as what fsspec.open() returns.
        advice = ": give what its open() returns" if hasattr(stream, "open") else ""
        raise TypeError(
            f"{type(stream).__name__} is not a path, a URI or a file object with {method}(){advice}"
        )
    if isinstance(stream, io.TextIOBase) or not _can(stream, ability):
        mode = getattr(stream, "mode", None)
        known = f", and its mode is {mode!r}" if isinstance(mode, str) else ""
        raise ValueError(
            f"the file object must be {ability} and binary{known}: open it with "
            f"{'rb' if ability == 'readable' else 'wb'!r}"
        )
