"""``Writer`` for Python: a ``torch.classes.tensorizer.Writer``, and the file object behind it."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import checked, wrong
from tensorizer_ops._base.file_objects import Output, label
from tensorizer_ops._base.options import Hashes, Metadata, Options, as_text, texts_of
from tensorizer_ops._base.savable import plain_tensors, refuse_other_metadata
from tensorizer_ops._base.tables import tensors_in_words
from tensorizer_ops._base.targets import Sink, place_of


class Writer:
    """A file that takes one tensor after another: ``writer[name] = tensor``.

    The file appears with :meth:`close`, or at the end of a ``with`` block. An exception that leaves
    the block discards it, and an older file stays as it was. So does a writer that is dropped, or
    that fails while it writes. A tensor that is refused leaves the writer as it was. A file object
    is written in place, from its current position; the writer does not close it.

    Any thread may use a writer. A call waits until the call of another thread has ended.

    Args:
        target: as for :func:`tensorizer_ops.save`. The index comes first in the file and is known
            last, so no path or descriptor of a pipe; a file object of one is written at the end,
            from a temporary file.
        hashes: as for :func:`tensorizer_ops.save`.
        metadata: as for :func:`tensorizer_ops.save`.
        threads: as for :func:`tensorizer_ops.save`.
        expected_tensors: how many tensors to reserve room for in the index. With too small a
            number, data moves to make room, and S3 refuses the tensors for which there is none.
        expected_bytes: how many bytes of tensors to reserve room for digests of chunks for.
        options: as for :func:`tensorizer_ops.save`.
    """

    @checked
    def __init__(
        self,
        target: Sink,
        *,
        hashes: Hashes = "chunked",
        metadata: Metadata | None = None,
        threads: int = 0,
        expected_tensors: int = 0,
        expected_bytes: int = 0,
        options: Options | None = None,
    ) -> None:
        given = as_text(options)
        arguments = as_text(
            {
                "hashes": hashes,
                "threads": threads,
                "expected_tensors": expected_tensors,
                "expected_bytes": expected_bytes,
            }
        )
        if both := given.keys() & arguments.keys():
            raise errors.InvalidArgument(
                f"{min(both)!r} is an argument of Writer, and not among its options: give "
                f"{min(both)}=",
            )
        kept = texts_of(metadata)
        refuse_other_metadata(kept)
        self._label = label(target)
        self._output = Output(place_of(target), {**given, **arguments}, kept)

    def __setitem__(self, name: str, tensor: torch.Tensor) -> None:
        """Write a tensor, as :meth:`add` does. A name can be set once."""
        self.add(name, tensor)

    def __repr__(self) -> str:
        state, count = self._output.writer._state()
        return f"<tensorizer_ops.Writer to {self._label}: {tensors_in_words(count)}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Writer cannot be copied or pickled: it is a file that is being written")

    def __enter__(self) -> Writer:
        state, _ = self._output.writer._state()
        if state != "open":
            raise errors.InvalidArgument(f"the writer to {self._label} is {state}")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        state, _ = self._output.writer._state()
        if kind is not None:
            self.abort()
        elif state != "aborted":
            self.close()

    @property
    def script_object(self) -> Any:
        """The ``torch.classes.tensorizer.Writer`` of this writer, which TorchScript can use."""
        return self._output.writer

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Write a tensor. Raises ``ValueError`` for a name that was added before."""
        if not isinstance(name, str):
            raise wrong("name", name, "str: the order is add(name, tensor)")
        (plain,) = plain_tensors([name], [tensor])
        with torch._C.DisableTorchFunctionSubclass():
            self._output.writer.add(name, plain)

    def progress(self) -> tuple[int, int]:
        """Return the bytes written, and the bytes given to :meth:`add` so far."""
        done, total = self._output.writer.progress()
        return done, total

    def cancel(self) -> None:
        """End the running call, which raises :class:`tensorizer_ops.errors.Cancelled`."""
        self._output.writer.cancel()

    def close(self) -> None:
        """Finish the file, which appears under its name. Has no effect the second time."""
        self._output.close()

    def abort(self) -> None:
        """Discard the file and leave an older one as it was. Has no effect after :meth:`close`."""
        self._output.abort()
