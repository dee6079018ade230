"""The loaded tensors of one file."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from tensorizer_ops._base.progress import Progress, reported
from tensorizer_ops._compat.catalog import Catalog
from tensorizer_ops._compat.opened_file import OpenedFile
from tensorizer_ops._compat.perf import count_load


def current_cuda_device() -> torch.device:
    """Return the device that ``cuda`` refers to now, without initializing CUDA."""
    default = torch.get_default_device()
    if default.type == "cuda":
        return default
    return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_initialized() else 0)


def _to_parameter(tensor: torch.Tensor) -> torch.nn.Parameter:
    differentiable = tensor.is_floating_point() or tensor.is_complex()
    return torch.nn.Parameter(tensor, requires_grad=differentiable)


class Values:
    """Loads tensors and keeps them, by their numbers in the file. Thread-safe."""

    def __init__(
        self,
        file: OpenedFile,
        catalog: Catalog,
        *,
        device: torch.device,
        dtype: torch.dtype | None,
        copy: bool,
        threads: int,
        verify: bool,
        progress: Progress | None,
    ) -> None:
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype is {type(dtype).__name__}, and must be torch.dtype or None")
        self._file = file
        # None for "cuda" without an index, which means the current device of each later call.
        self._device = None if device.type == "cuda" and device.index is None else device
        self._dtype = dtype
        self._copy = copy
        self._threads = threads
        self._verify = verify
        self._progress = progress
        self._catalog = catalog
        self._count = len(catalog.names)
        self._values: dict[int, torch.nn.Parameter] = {}
        self._stored: dict[int, torch.dtype] = {}  # the types in the file, if there may be a cast
        self.module_indices = [0] * self._count

    @property
    def device(self) -> torch.device:
        """The device of tensors that are loaded now."""
        return self._device or current_cuda_device()

    @property
    def on_cpu(self) -> bool:
        return self._device is not None and self._device.type == "cpu"

    @property
    def as_stored(self) -> bool:
        """Whether tensors are loaded without a cast."""
        return self._dtype is None

    def loaded(self, number: int) -> torch.nn.Parameter | None:
        return self._values.get(number)

    @property
    def must_be_signed(self) -> bool:
        return self._file.is_signed

    def stored_dtype(self, number: int) -> torch.dtype:
        """Return the type in the file of a tensor that was loaded."""
        return self._stored.get(number) or self._values[number].dtype

    def __getitem__(self, number: int) -> torch.nn.Parameter:
        if number not in self._values:
            self.load((number,))
        return self._values[number]

    def load(self, numbers: Iterable[int], verify: bool | None = None) -> None:
        """Load all tensors that are not loaded yet, in one call.

        All names of a tied tensor are loaded together: a stream has its data only once.

        Holds no lock, because signal handlers and progress functions may also access tensors. If
        several threads load the same tensor, all of them get that of the first to finish.
        """
        missing = [i for i in numbers if i not in self._values]
        if not missing:
            return
        missing = self._catalog.with_ties(missing)
        self._file.must_be_open()
        # Not in inference mode, even if the caller is: the tensors may be used in training later.
        with self._reported(self._file.reader), torch.inference_mode(False):
            tensors = self._fetch(self._file.reader, missing, self._dtype, verify)
            if self._dtype is not None:
                names, type_name = self._file.reader.names(), self._file.internals.type_name
                self._stored |= {i: getattr(torch, type_name(names[i])) for i in missing}
            for i, tensor in zip(missing, tensors, strict=True):
                self._values.setdefault(i, _to_parameter(tensor))

    def fetch_as_stored(
        self, reader: Any, numbers: list[int], verify: bool | None
    ) -> list[torch.Tensor]:
        """Load tensors from a reader of the same file without a cast, and do not keep them."""
        with self._reported(reader):
            return self._fetch(reader, numbers, None, verify)

    @contextlib.contextmanager
    def comparing(self) -> Iterator[Callable[[int, torch.Tensor], bool]]:
        """Give what returns whether a tensor has the hashes of the one that was loaded.

        If these are not enough for what must be signed, it compares with the file itself.
        """
        with contextlib.ExitStack() as stack:

            @functools.cache
            def again() -> Any:
                reader = stack.enter_context(self._file.opened(self._catalog))
                return torch.classes.tensorizer._Internals(reader)

            def matches(number: int, tensor: torch.Tensor) -> bool:
                internals = self._file.internals
                internals = internals if internals.header_suffices(number) else again()
                with torch._C.DisableTorchFunctionSubclass():
                    return bool(internals.matches(number, tensor))

            yield matches

    def _reported(self, reader: Any) -> AbstractContextManager[None]:
        return reported(reader, self._progress)

    def _fetch(
        self, reader: Any, numbers: list[int], dtype: torch.dtype | None, verify: bool | None
    ) -> list[torch.Tensor]:
        device = self.device
        wanted = None if len(numbers) == self._count else numbers
        checks = "all" if (self._verify if verify is None else verify) else "none"
        is_usual = reader is self._file.reader  # and loads tensors one by one, perhaps
        internals = (
            self._file.internals if is_usual else torch.classes.tensorizer._Internals(reader)
        )
        with count_load(reader, device):
            tensors, module_indices = internals.load_numbered(
                wanted, device, dtype, checks, self._copy, self._threads
            )
        for i, index in zip(numbers, module_indices, strict=True):
            self.module_indices[i] = index
        fetched: list[torch.Tensor] = tensors
        return fetched
