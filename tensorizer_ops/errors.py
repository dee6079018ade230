"""The exceptions of tensorizer_ops: one class per kind of error.

Each is also the built-in exception that fits it, so ``except FileNotFoundError`` works. The text of
every one starts with its kind (``tensorizer.NotFound: ...``), and is the same wherever the error
surfaces: inside TorchScript and AOTInductor, where no type survives, it is all that is left.
"""

from __future__ import annotations

import errno as _errno
import os as _os
import typing as _typing

if _typing.TYPE_CHECKING:
    from torch import OutOfMemoryError as _TorchOutOfMemoryError
else:

    class _TorchOutOfMemoryError(RuntimeError):
        """Takes the place of torch's class until torch is imported."""


class Error(Exception):
    """Every error that comes from the library."""

    def __str__(self) -> str:
        # The plain text, where OSError would add its errno and KeyError would add quotes. An
        # OSError with an errno has two or three arguments, and the text is the second.
        if len(self.args) == 1:
            return str(self.args[0])
        if isinstance(self, OSError) and len(self.args) > 1:
            return str(self.args[1])
        return Exception.__str__(self)


class NotFound(Error, FileNotFoundError):
    """There is no such file or object."""


class NoSuchTensor(Error, KeyError):
    """The file has no tensor of that name."""


class PermissionDenied(Error, PermissionError):
    """The file or object is there, but not for this process."""


class Unavailable(Error, ConnectionError):
    """A server cannot be reached or does not serve at the moment."""


class TimedOut(Error, TimeoutError):
    """The other side did not answer in time."""


class InvalidFormat(Error, ValueError):
    """The bytes are not a valid ``.tensors`` file."""


class InvalidArgument(Error, ValueError):
    """The caller asks for what cannot be."""


class OutOfSpace(Error, OSError):
    """The disk or the quota is full."""


class OutOfMemory(Error, MemoryError, _TorchOutOfMemoryError):
    """There is no memory for a tensor: of the machine, of a device, or pinned."""


class FileError(Error, OSError):
    """Any other refusal of the operating system."""


class IsADirectory(FileError, IsADirectoryError):
    """The path is a directory, where a file is needed."""


class FileExists(FileError, FileExistsError):
    """The path is taken."""


class BrokenPipe(Unavailable, BrokenPipeError):
    """Whoever read from the pipe is gone."""


class HashMismatch(Error):
    """The bytes of a tensor are not those that were saved."""


class Crypto(Error):
    """Encrypted data cannot be decrypted: the key is wrong, or someone changed the data."""


class Cancelled(Error, RuntimeError):
    """The job was cancelled."""


class Internal(Error, RuntimeError):
    """A mistake in the library itself."""


def _derive_from_torch(out_of_memory: type[Exception]) -> None:
    """Make :class:`OutOfMemory` the class of torch's that it is to whoever has torch."""
    OutOfMemory.__bases__ = (Error, MemoryError, out_of_memory)


_Kind = _typing.TypeVar("_Kind", bound=Error)

_BY_KIND: dict[str, type[Error]] = {"SystemError": FileError} | {
    kind.__name__: kind
    for kind in (
        NotFound,
        NoSuchTensor,
        PermissionDenied,
        Unavailable,
        TimedOut,
        InvalidFormat,
        InvalidArgument,
        OutOfSpace,
        OutOfMemory,
        HashMismatch,
        Crypto,
        Cancelled,
        Internal,
    )
}

# The kinds that an errno says more about.
_BY_ERRNO: dict[tuple[str, int], type[Error]] = {
    ("SystemError", _errno.EISDIR): IsADirectory,
    ("SystemError", _errno.EEXIST): FileExists,
    ("Unavailable", _errno.EPIPE): BrokenPipe,
}


def _new(kind: type[_Kind], what: str) -> _Kind:
    """An error of the library's Python part."""
    return kind(f"tensorizer.{kind.__name__}: {what}")


def _make(kind: str, text: bytes, errno: int, path: bytes) -> Error:
    """The exception for an error of the library; without an errno it is 0, without a path empty."""
    message = text.decode("utf-8", "backslashreplace")
    kind_class = _BY_ERRNO.get((kind, errno), _BY_KIND[kind])
    if issubclass(kind_class, OSError) and errno:
        return kind_class(errno, message, _os.fsdecode(path) if path else None)
    return kind_class(message)
