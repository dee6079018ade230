"""Opens a ``file_obj`` as ``tensorizer`` does: a path, a URI, a descriptor or a file object."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any

from tensorizer_ops import errors
from tensorizer_ops._base.file_objects import Output, takes_in_order
from tensorizer_ops._base.targets import local_path, to_uri
from tensorizer_ops._compat.schemes import stream_kind


def resolve(file_obj: Any, mode: str) -> Any:
    """Return a URI string that the library opens, or an open file object owned by the caller."""
    if isinstance(file_obj, int):
        return io.FileIO(file_obj, mode)
    if isinstance(file_obj, str) and stream_kind(file_obj):
        # open_stream() has the defaults of tensorizer, for endpoints and keys of S3 for example.
        from tensorizer_ops import stream_io

        return stream_io.open_stream(file_obj, mode)
    if isinstance(file_obj, str | bytes | os.PathLike):
        # Such names are literal paths: descriptors are ints here, and "~" is not expanded.
        name = os.fsdecode(file_obj)
        if name.startswith(("~", "fd:")):
            file_obj = os.path.join(os.curdir, name)
        path = local_path(file_obj) if "w" in mode else None
        if path is not None and takes_in_order(path):
            return open(path, "wb", buffering=0)
        return to_uri(file_obj)
    method = "write" if "w" in mode else "read"
    if not hasattr(file_obj, method):
        raise TypeError(
            f"file_obj is {type(file_obj).__name__}, and must be a path, a URI, a descriptor or a "
            f"file object with {method}()"
        )
    return file_obj


def open_output(place: Any, options: Mapping[str, str]) -> Output:
    """Open a result of :func:`resolve` for writing."""
    # The classes of this API write one format, whatever the name of the file.
    if options.get("format", "tensors") != "tensors":
        raise errors.InvalidArgument(
            "a TensorSerializer writes .tensors files only: use tensorizer_ops.save()",
        )
    return Output(place, {**options, "format": "tensors"})


def close(stream: Any) -> None:
    """Close a stream that has ``close()``; ``None`` is allowed."""
    if hasattr(stream, "close"):
        stream.close()
