"""The exceptions of tensorizer_ops: one class per kind of error.

Each class is also derived from the built-in exception that fits it, so ``except FileNotFoundError``
works. TorchScript and AOTInductor do not keep the exception's type, only its message; there it
starts with the kind (``tensorizer.NotFound: ...``).
"""

from __future__ import annotations

import errno as _errno
import os as _os
import typing as _typing

if _typing.TYPE_CHECKING:
    from torch import OutOfMemoryError as _TorchOutOfMemoryError
else:

    class _TorchOutOfMemoryError(RuntimeError):
        """Placeholder for torch's class until torch is imported."""


# The URL of docs/troubleshooting.md, which messages end with; empty until the project has a site.
_PAGE = ""


class Error(Exception):
    """The base class of all errors of the library."""

    def __str__(self) -> str:
        text = self._text()
        if not _PAGE or _PAGE in text:  # an error of another rank, or in another error
            return text
        name = next(each.__name__ for each in type(self).__mro__ if each.__module__ == __name__)
        return f"{text}\nSee {_PAGE}#{name}"

    def _text(self) -> str:
        # The plain message: OSError would add its errno, and KeyError quotes. An OSError with an
        # errno has two or three arguments; the message is the second.
        if len(self.args) == 1:
            return str(self.args[0])
        if isinstance(self, OSError) and len(self.args) > 1:
            return str(self.args[1])
        return Exception.__str__(self)


class NotFound(Error, FileNotFoundError):
    """The file or object does not exist."""


class NoSuchTensor(Error, KeyError):
    """The file has no tensor of that name."""


class PermissionDenied(Error, PermissionError):
    """The file or object exists, but this process may not access it."""


class Unavailable(Error, ConnectionError):
    """A server cannot be reached or is temporarily unavailable."""


class TimedOut(Error, TimeoutError):
    """A server did not respond in time."""


class InvalidFormat(Error, ValueError):
    """The bytes are not a valid ``.tensors`` or safetensors file."""


class InvalidArgument(Error, ValueError):
    """An argument or option is invalid, or the request is not possible."""


class OutOfSpace(Error, OSError):
    """The disk or the quota is full."""


class OutOfMemory(Error, MemoryError, _TorchOutOfMemoryError):
    """Memory for a tensor could not be allocated: host memory, device memory or pinned memory."""


class FileError(Error, OSError):
    """Any other error of the operating system."""


class IsADirectory(FileError, IsADirectoryError):
    """The path is a directory; a file is needed."""


class FileExists(FileError, FileExistsError):
    """The path already exists."""


class BrokenPipe(Unavailable, BrokenPipeError):
    """The reader has closed the pipe."""


class HashMismatch(Error):
    """The data of a tensor does not match its saved hash."""


class Crypto(Error):
    """A key is wrong, encrypted data was modified, or nobody who is trusted has signed a file."""


class Cancelled(Error, RuntimeError):
    """The job was cancelled."""


class Internal(Error, RuntimeError):
    """A bug in the library itself."""


def _derive_from_torch(out_of_memory: type[Exception]) -> None:
    """Make :class:`OutOfMemory` a subclass of torch's own, in place of the placeholder."""
    OutOfMemory.__bases__ = (Error, MemoryError, out_of_memory)


# The classes derived from Error itself have the names of the library's kinds, but for one.
_BY_KIND: dict[str, type[Error]] = {kind.__name__: kind for kind in Error.__subclasses__()}
_BY_KIND["SystemError"] = _BY_KIND.pop("FileError")

# Kinds that have a more specific class for some errnos.
_BY_ERRNO: dict[tuple[str, int], type[Error]] = {
    ("SystemError", _errno.EISDIR): IsADirectory,
    ("SystemError", _errno.EEXIST): FileExists,
    ("Unavailable", _errno.EPIPE): BrokenPipe,
}


def _make(kind: str, text: bytes, errno: int, path: bytes) -> Error:
    """Make the exception for an error of the library.

    ``errno`` is 0 if there is none, and ``path`` is empty if there is none.
    """
    message = text.decode("utf-8", "backslashreplace")
    kind_class = _BY_ERRNO.get((kind, errno), _BY_KIND[kind])
    if issubclass(kind_class, OSError) and errno:
        return kind_class(errno, message, _os.fsdecode(path) if path else None)
    return kind_class(message)
