"""S3 objects as Python file objects, for writing."""

from __future__ import annotations

import io
import os
import tempfile
import warnings

from tensorizer_ops import _core
from tensorizer_ops._base.options import SecretOptions, as_pairs
from tensorizer_ops._compat.unclosed import finish_at_exit


class S3UploadFile(io.BufferedRandom):
    """An unnamed temporary file that is uploaded as an S3 object when it is closed.

    Until then it can be read and written at any position. If a ``with`` block ends with an
    exception, nothing is uploaded and an existing object is unchanged.
    """

    raw: io.FileIO
    _target: tuple[str, SecretOptions] | None = None

    def __init__(self, uri: str, options: SecretOptions, buffer_size: int | None) -> None:
        raw = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (this closes it)
        size = io.DEFAULT_BUFFER_SIZE if buffer_size is None or buffer_size < 1 else buffer_size
        super().__init__(raw, size)
        self._uri = uri
        self._target = uri, options
        self._process = os.getpid()
        finish_at_exit(self)

    @property
    def name(self) -> str:
        return self._uri

    def close(self) -> None:
        """Upload the file. The object changes only when the upload is complete."""
        target, self._target = self._target, None
        try:
            # A child of fork() has a copy of this object, but must not upload.
            if target is not None and not self.closed and self._process == os.getpid():
                self.flush()
                uri, options = target
                _core.upload(f"fd:{self.raw.fileno()}", uri, as_pairs(options))
        finally:
            super().close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._target = None
        self.close()

    def __del__(self) -> None:
        if self._target is None:
            return
        if self._process == os.getpid():
            warnings.warn(f"{self._uri!r} was not closed", ResourceWarning, 2, source=self)
        self.close()

    def _hand_over(self) -> tuple[str, dict[str, str]] | None:
        """Return a URI and options for a ``Writer`` that writes the object instead of this file.

        This file is then closed and uploads nothing. Returns ``None`` if it is closed or something
        has been written to it.
        """
        if self.closed or self._target is None:
            return None
        self.flush()
        if self.tell() != 0 or os.fstat(self.raw.fileno()).st_size != 0:
            return None
        target, self._target = self._target, None
        self.close()
        return target
