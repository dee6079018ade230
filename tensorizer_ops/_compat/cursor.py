"""Reads the tensors of a file in order, and resumes where the last read stopped."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tensorizer_ops._base.memory import INTEGERS
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._compat.catalog import Catalog, FilterFuncType
from tensorizer_ops._compat.opened_file import OpenedFile
from tensorizer_ops._compat.values import Values

if TYPE_CHECKING:
    import numpy

# The element types that numpy has. Others become arrays of integers of the same size.
_NUMPY_DTYPES = {
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
}


class Cursor:
    """A position in a file: the tensor after the one that was yielded last."""

    def __init__(self, file: OpenedFile, catalog: Catalog, values: Values) -> None:
        self._file = file
        self._catalog = catalog
        self._values = values
        self._next = 0

    def read(
        self,
        filter_func: FilterFuncType | None,
        num_tensors: int,
        verify_hash: bool | None,
        *,
        as_stored: bool,
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield up to ``num_tensors`` pairs of a number and a tensor; -1 means all that are left.

        With ``as_stored`` no tensor is cast. After reading to the end with -1, the next read starts
        over.
        """
        if num_tensors < -1:
            raise ValueError(f"num_tensors is {num_tensors}, and must be -1 or more")
        start = self._next
        left = (i for i in self._catalog.kept if i >= start)
        wanted = self._catalog.filter(left, filter_func)
        if num_tensors >= 0:
            wanted = itertools.islice(wanted, num_tensors)
        reader: Any = None
        with contextlib.ExitStack() as opened:
            for batch in self._catalog.batches(wanted):
                if self._values.as_stored or not as_stored:
                    self._values.load(batch, verify_hash)
                    tensors: Iterable[torch.Tensor] = map(self._values.__getitem__, batch)
                else:
                    if reader is None:
                        reader = opened.enter_context(self._file.opened(self._catalog))
                    tensors = self._values.fetch_as_stored(reader, batch, verify_hash)
                for i, tensor in zip(batch, tensors, strict=True):
                    self._next = i + 1
                    yield i, tensor
        if num_tensors == -1:
            self._next = 0


def as_array(
    name: object, tensor: torch.Tensor, allow_raw_data: bool
) -> tuple[numpy.ndarray[Any, Any], bool, str | None]:
    """Return a tensor's elements as an array, whether numpy lacks their type, and its torch name.

    The array has integers of the same size if numpy lacks the type; the name is ``None`` otherwise.

    Raises:
        ValueError: numpy lacks the type, and ``allow_raw_data`` is false.
    """
    opaque = tensor.dtype not in _NUMPY_DTYPES
    if opaque and not allow_raw_data:
        raise ValueError(
            f"{quoted(name)} is {tensor.dtype}, which numpy lacks: allow_raw_data=True gives its "
            "elements as integers"
        )
    elements = tensor.detach()
    array = (elements.view(INTEGERS[tensor.itemsize]) if opaque else elements).numpy()
    return array, opaque, str(tensor.dtype) if opaque else None
