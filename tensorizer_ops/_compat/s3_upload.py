"""Objects in S3 as file objects, for writing."""

from __future__ import annotations

import io
import os
import tempfile
import warnings
from types import TracebackType

from tensorizer_ops import _python
from tensorizer_ops._compat.unclosed import finish_at_exit
from tensorizer_ops._options import SecretOptions, as_pairs


class S3UploadFile(io.BufferedRandom):
    """What will be an object: a file without a name, which goes up when this is closed.

    Until then it can be read, and written anywhere. A ``with`` block that ends with an exception
    drops it, and the object stays as it was.
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
        """Upload what was written. Until this returns, the object is what it was."""
        target, self._target = self._target, None
        try:
            # A child of fork() has a copy of this object, and nothing to say.
            if target is not None and not self.closed and self._process == os.getpid():
                self.flush()
                uri, options = target
                _python.upload(f"fd:{self.raw.fileno()}", uri, as_pairs(options))
        finally:
            super().close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        """The URI and options with which a ``Writer`` writes the object in the place of this.

        Nothing where something was written already. This is closed then, and uploads nothing.
        """
        if self.closed or self._target is None:
            return None
        self.flush()
        if self.tell() != 0 or os.fstat(self.raw.fileno()).st_size != 0:
            return None
        target, self._target = self._target, None
        self.close()
        return target
