"""TensorSerializer: writes modules and state dicts to a file."""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tensorizer_ops import _core, errors
from tensorizer_ops._base.arguments import wrong
from tensorizer_ops._base.file_objects import MOST_THREADS, label
from tensorizer_ops._base.options import Options, as_text
from tensorizer_ops._base.progress import Progress, reported
from tensorizer_ops._base.savable import plain_tensors
from tensorizer_ops._base.tables import tensors_in_words
from tensorizer_ops._compat import files, paths
from tensorizer_ops._compat.crypt_params import EncryptionParams
from tensorizer_ops._compat.log import logger
from tensorizer_ops._compat.named_key import named
from tensorizer_ops._compat.types import TensorType
from tensorizer_ops._compat.unclosed import finish_at_exit

with contextlib.suppress(ImportError):  # if it is installed, torch has already imported it
    import numpy

cpu_count: int = _core.usable_cpus()


class TensorSerializer:
    """Writes tensors to a ``.tensors`` file.

    The file appears with :meth:`close` or at the end of a ``with`` block. If the block ends with an
    exception, a previous file stays unchanged. A file object is written in place, from its current
    position; after each call that writes, it contains a complete file and its position is the end
    of that file. :meth:`close` also closes the file object; a serializer that is garbage-collected
    without :meth:`close` leaves the caller's file object open.

    Args:
        file_obj: a path, a URI, a descriptor, or a binary file object.
        compress_tensors: has no effect.
        encryption: the key to encrypt with.
        limit_cpu_concurrency: the number of threads that compute; by default one for every CPU.
        progress: called ten times a second from another thread with the bytes written so far and
            the bytes to write in all.
        options: the options of ``tensorizer_ops.save``, for servers, and ``hashes`` and
            ``digests``.

    Raises:
        ValueError: the file object is in text mode, or not writable.
        OSError: the file cannot be written.
    """

    def __init__(
        self,
        file_obj: Any,
        compress_tensors: bool = False,
        *,
        encryption: EncryptionParams | None = None,
        limit_cpu_concurrency: int | None = None,
        progress: Progress | None = None,
        options: Options | None = None,
    ) -> None:
        if limit_cpu_concurrency is not None and not isinstance(limit_cpu_concurrency, int):
            raise TypeError(
                f"limit_cpu_concurrency is {type(limit_cpu_concurrency).__name__}, and must be int "
                "or None"
            )
        if limit_cpu_concurrency is not None and limit_cpu_concurrency < 1:
            raise ValueError(
                f"limit_cpu_concurrency is {limit_cpu_concurrency}, and must be positive"
            )
        if encryption is not None and not isinstance(encryption, EncryptionParams):
            raise TypeError(
                f"encryption is {type(encryption).__name__}, and must be EncryptionParams"
            )
        self.compress_tensors = compress_tensors
        self.cpu_limit: int = limit_cpu_concurrency or cpu_count
        self.total_compressed_tensor_bytes = 0
        self._progress = progress
        self._has_tensors = False
        self._failed = False
        self._users: list[int] = []  # the threads that are writing or closing
        self._given_up = False
        place = files.resolve(file_obj, "wb+")
        self._label = label(file_obj)
        self._file = None if isinstance(place, str) else place
        self._is_callers = place is file_obj
        usual = {"hashes": "all", "threads": str(min(self.cpu_limit, MOST_THREADS))}
        with named(encryption) as key:
            self._output = files.open_output(place, {**usual, **as_text(options), **key})
        self._process = os.getpid()
        self._is_open = True
        finish_at_exit(self)

    def __repr__(self) -> str:
        state, count = self._output.writer._state()
        what = f"{tensors_in_words(count)}, {state}"
        return f"<tensorizer_ops.TensorSerializer to {self._label}: {what}>"

    @property
    def total_tensor_bytes(self) -> int:
        """The bytes of tensor data written so far."""
        total: int = self._output.writer.progress()[1]
        return total

    def write_tensor(
        self,
        idx: int,
        name: str,
        tensor_type: TensorType,
        tensor: torch.Tensor | numpy.ndarray[Any, Any],
    ) -> None:
        """Write one tensor. For many tensors, the other methods are faster.

        Args:
            idx: the index of its module.
            name: its name in the file.
            tensor_type: whether it is a parameter, a buffer or part of a state dict.
            tensor: a tensor or an array of numpy.
        """
        with self._writing():
            value = tensor if isinstance(tensor, torch.Tensor) else _from_numpy(name, tensor)
            index = operator.index(idx)
            self._write([name], [value], [int(TensorType(tensor_type))], [index])

    def write_module(
        self,
        m: torch.nn.Module,
        remove_tensors: bool = False,
        *,
        include_non_persistent_buffers: bool = True,
    ) -> None:
        """Write every parameter and buffer of a module.

        Args:
            m: the module.
            remove_tensors: whether to replace every tensor of the module by ``None`` after all have
                been written.
            include_non_persistent_buffers: whether to write buffers that are not in the state dict.
        """
        if not isinstance(m, torch.nn.Module):
            is_state = ": write_state_dict() takes one" if isinstance(m, Mapping) else ""
            raise wrong("m", m, f"a torch.nn.Module{is_state}")
        with self._writing():
            slots = list(_slots(m, include_non_persistent_buffers))
            self._write(
                [name for name, *_ in slots],
                [tensor for *_, tensor in slots],
                [int(kind) for _, _, kind, *_ in slots],
                [index for _, index, *_ in slots],
            )
        if remove_tensors:
            for name, _, _, owner, _ in slots:
                setattr(owner, name.rpartition(".")[2], None)

    def write_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Any]) -> None:
        """Write tensors by name. Dicts and lists may be nested; keys are strings.

        Raises:
            TypeError: the structure contains anything but dicts, lists and tensors.
        """
        if isinstance(state_dict, torch.nn.Module):
            raise wrong("state_dict", state_dict, "a dict of tensors: give its state_dict()")
        with self._writing():
            leaves = list(paths.flatten(state_dict))
            self._write(
                [paths.stored_name(path) for path, _ in leaves],
                [tensor for _, tensor in leaves],
                [int(TensorType.STATE_DICT)] * len(leaves),
                [0] * len(leaves),
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if not self._is_open:
            raise ValueError("the TensorSerializer is closed")
        self._users.append(threading.get_ident())
        try:
            yield
        except BaseException:
            self._failed = True
            raise
        finally:
            self._users.remove(threading.get_ident())
            if self._given_up:
                self._end(self._output.abort)

    def _write(
        self, names: list[str], tensors: list[torch.Tensor], types: list[int], indices: list[int]
    ) -> None:
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"a name is {type(name).__name__}, and must be str")
            name.encode()  # raises for a lone surrogate
        tensors = plain_tensors(names, tensors)
        writer = self._output.writer
        # Tensor subclasses must not intercept this call with __torch_function__.
        with reported(writer, self._progress), torch._C.DisableTorchFunctionSubclass():
            writer._add_all(names, tensors, types, indices)
        self._output.flush()
        self._has_tensors = True
        if logger.isEnabledFor(logging.DEBUG):
            for name, tensor, kind, index in zip(names, tensors, types, indices, strict=True):
                shape, size = tuple(tensor.shape), tensor.nbytes
                logger.debug(
                    "%d:%d:%s - %s - %s -> %d", index, kind, name, tensor.dtype, shape, size
                )

    def close(self) -> None:
        """Complete the file, which appears now.

        Raises:
            Cancelled: this was called during a call that writes, from a signal handler for example.
                That call is aborted, and a previous file stays unchanged.
        """
        was_open = self._is_open
        self._end(self._output.close)
        if was_open:
            logger.debug("%d bytes of tensors were serialized", self.total_tensor_bytes)

    def _end(self, end: Any, closes: bool = True) -> None:
        if threading.get_ident() in self._users:
            # The interrupted call, which is below this one on the stack, closes the file.
            self._given_up = True
            self._output.writer.abort()
            raise errors.Cancelled(
                "the TensorSerializer is in use on this thread, so close() cannot finish the file: "
                "the interrupted call is aborted, and an existing file stays unchanged",
            )
        if not self._is_open:
            return
        self._is_open = False
        self._users.append(threading.get_ident())
        try:
            end()
        except BaseException:
            self._output.abort()
            raise
        finally:
            self._users.remove(threading.get_ident())
            if closes:
                files.close(self._file)

    def __enter__(self) -> TensorSerializer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(self._output.close if kind is None else self._output.abort)

    def __del__(self) -> None:
        # __init__ may have failed early, and a child of fork() has a copy of this object.
        if not getattr(self, "_is_open", False) or self._process != os.getpid():
            return
        finished = self._has_tensors and not self._failed and not self._output.is_lost
        what = "finished" if finished else "aborted"
        warnings.warn(
            f"a TensorSerializer was not closed: its file was {what}",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )
        end = self._output.close if finished else self._output.abort
        self._end(end, closes=not self._is_callers)


def _slots(
    module: torch.nn.Module, non_persistent: bool
) -> Iterator[tuple[str, int, TensorType, torch.nn.Module, torch.Tensor]]:
    """Yield for every tensor: name, index of its module, type, its module, and the tensor."""
    for index, (path, owner) in enumerate(module.named_modules()):
        for name, parameter in owner.named_parameters(recurse=False):
            yield f"{path}.{name}", index, TensorType.PARAM, owner, parameter
        for name, buffer in owner.named_buffers(recurse=False):
            if non_persistent or name not in owner._non_persistent_buffers_set:
                yield f"{path}.{name}", index, TensorType.BUFFER, owner, buffer


def _from_numpy(name: str, array: Any) -> torch.Tensor:
    import numpy

    if not isinstance(array, numpy.ndarray | numpy.generic):
        raise TypeError(f"a tensor is {type(array).__name__}, and must be of torch or of numpy")
    if isinstance(array, numpy.ma.MaskedArray):
        raise errors.InvalidArgument(
            f"tensor {name!r} cannot be saved: it is masked: save its data and its mask"
        )
    with warnings.catch_warnings():
        # The array is only read.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        try:
            # Torch does not support negative strides.
            return torch.from_numpy(numpy.ascontiguousarray(array).reshape(array.shape))
        except (TypeError, ValueError) as error:
            raise type(error)(f"tensor {name!r} cannot be saved: {error}") from None
