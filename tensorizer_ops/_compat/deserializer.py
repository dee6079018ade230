"""TensorDeserializer: reads the tensors of a file as a mapping, or into a module."""

from __future__ import annotations

import collections.abc
import contextlib
import logging
import os
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from tensorizer_ops._base.arguments import wrong
from tensorizer_ops._base.devices import named_device
from tensorizer_ops._base.file_objects import label
from tensorizer_ops._base.options import Options, kept
from tensorizer_ops._base.progress import Progress
from tensorizer_ops._base.tables import (
    MOST_ROWS,
    size_text,
    table_of_tensors,
    tensors_in_words,
)
from tensorizer_ops._base.targets import to_uri
from tensorizer_ops._compat import paths
from tensorizer_ops._compat.catalog import Catalog, FilterFuncType
from tensorizer_ops._compat.crypt_params import DecryptionParams
from tensorizer_ops._compat.cursor import Cursor, as_array
from tensorizer_ops._compat.log import logger
from tensorizer_ops._compat.module_compare import compare_module
from tensorizer_ops._compat.module_fill import Incoming, fill_module
from tensorizer_ops._compat.opened_file import OpenedFile
from tensorizer_ops._compat.paths import Path
from tensorizer_ops._compat.redis_keys import write_keys
from tensorizer_ops._compat.types import FileFeatureFlags, FileHeader, TensorType
from tensorizer_ops._compat.values import Values
from tensorizer_ops.utils import get_device

with contextlib.suppress(ImportError):  # if it is installed, torch has already imported it
    import numpy


class TensorDeserializer(collections.abc.Mapping[Any, Any]):
    """The tensors of a ``.tensors`` file, by name.

    A read-only mapping that can be used as a ``state_dict``. Every value is an ``nn.Parameter``.
    The name of a root module's tensor starts with a dot; lookups also work without the dot. Nested
    structures are nested mappings here; :meth:`tree` returns them as the dicts and lists that were
    saved.

    Args:
        file_obj: a path, a URI, a descriptor, or a binary file object, which is closed once
            everything has been read.
        device: the device of the tensors; by default CUDA if available, otherwise the CPU.
        filter_func: takes a name (a tuple for a nested tensor) and returns whether to include it.
        dtype: the type that real floating-point tensors are cast to; other tensors keep theirs.
        lazy_load: whether to load each tensor on first access instead of now.
        plaid_mode: has no effect.
        plaid_mode_buffers: has no effect.
        num_readers: the number of threads that load; by default one for every CPU.
        verify_hash: whether to check every hash that was saved.
        encryption: the key of an encrypted file.
        zero_copy: whether tensors on the CPU may share pages with a local file, which must then not
            be changed in place while they are in use.
        progress: called ten times a second from another thread with the bytes that a load has moved
            so far and the bytes to move in all.
        options: the options of ``tensorizer_ops.load``, for servers and limits.

    Raises:
        HashMismatchError: the data differs from what was saved.
        CryptographyError: the key is missing or wrong, or the data was modified.
        ValueError: the file is malformed, or an argument is invalid.
        OSError: the file cannot be read.
    """

    def __init__(
        self,
        file_obj: Any,
        device: torch.device | str | None = None,
        filter_func: FilterFuncType | None = None,
        dtype: torch.dtype | None = None,
        *,
        lazy_load: bool = False,
        plaid_mode: bool | None = None,
        plaid_mode_buffers: int | None = None,
        num_readers: int | None = None,
        verify_hash: bool = False,
        encryption: DecryptionParams | None = None,
        zero_copy: bool = False,
        progress: Progress | None = None,
        options: Options | None = None,
    ) -> None:
        where = get_device() if device is None else named_device(device)
        if where.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("the device is CUDA, which is not available")
        if encryption is not None and not isinstance(encryption, DecryptionParams):
            raise TypeError(
                f"encryption is {type(encryption).__name__}, and must be DecryptionParams"
            )
        if num_readers is not None and not isinstance(num_readers, int):
            raise TypeError(f"num_readers is {type(num_readers).__name__}, and must be int or None")
        # The arguments to recreate this object, for pickling.
        self._arguments: dict[str, Any] = {
            "file_obj": file_obj,
            "device": device,
            "filter_func": filter_func,
            "dtype": dtype,
            "lazy_load": lazy_load,
            "num_readers": num_readers,
            "verify_hash": verify_hash,
            "zero_copy": zero_copy,
            "progress": progress,
            "options": kept(options),
        }
        self._encryption = encryption
        self.total_compressed_tensor_bytes = 0
        self.read_bytes = 0
        self._file = OpenedFile(file_obj, options, encryption, lazy=lazy_load)
        self._label = label(file_obj)
        try:
            self._catalog = Catalog(self._file.reader, filter_func)
            self._values = Values(
                self._file,
                self._catalog,
                device=where,
                dtype=dtype,
                copy=not zero_copy,
                threads=self._file.choose_threads(num_readers, len(self._catalog.kept)),
                verify=verify_hash,
                progress=progress,
            )
            self._cursor = Cursor(self._file, self._catalog, self._values)
            self.total_file_bytes: int = self._catalog.total_stored()
            self.total_tensor_bytes: int = self._catalog.total_memory()
            self._log()
            if not lazy_load:
                self._values.load(self._catalog.kept)
                self.total_tensor_bytes = self._catalog.total_data()
                self._file.finish()
        except BaseException:
            self.close()
            raise

    @property
    def _file_header(self) -> FileHeader:
        return self._file.header

    @property
    def _file_flags(self) -> FileFeatureFlags:
        return self._file_header.feature_flags

    @property
    def _device(self) -> torch.device:
        return self._values.device

    def _log(self) -> None:
        if not logger.isEnabledFor(logging.DEBUG):
            return
        given = self._arguments
        logger.debug(
            "Deserializing %d bytes of %d tensors: lazy_load=%s, verify_hash=%s, encrypted=%s, "
            "device=%s, dtype=%s, data_version=%d",
            self.total_tensor_bytes,
            len(self._catalog.kept),
            given["lazy_load"],
            given["verify_hash"],
            FileFeatureFlags.encrypted in self._file_flags,
            self._device,
            given["dtype"],
            self._file_header.version_number,
        )

    def __repr__(self) -> str:
        size = size_text(self.total_tensor_bytes)
        what = f"{tensors_in_words(len(self._catalog.kept))}, {size}"
        return f"<tensorizer_ops.TensorDeserializer of {self._label}: {what}>"

    def _repr_html_(self) -> str:
        """Return a table of the tensors. Loads none."""
        numbers = self._catalog.kept[:MOST_ROWS]
        more = len(self._catalog.kept) - len(numbers)
        return table_of_tensors(map(self._row, numbers), more).html(repr(self)[1:-1])

    def _row(self, number: int) -> tuple[str, str | None, Sequence[int], int]:
        name, size = self._catalog.names[number], self._catalog.memory_sizes[number]
        value = self._values.loaded(number)
        if value is not None:
            return name, str(value.dtype).removeprefix("torch."), value.shape, value.nbytes
        if not self._file.is_open:
            return name, None, (), size
        internals = self._file.internals
        return name, internals.type_name(name), self._file.reader.shape(name), size

    # The mapping

    def __getitem__(self, key: Any) -> Any:
        found = self._catalog.find(key)
        if found is None:
            raise KeyError(f"tensor {key!r} not found")
        if isinstance(found, int):
            self._values.load((found,))
            return self._values[found]
        return paths.tree(self._leaves(self._catalog.below((key,))), MappingProxyType)

    def _leaves(self, numbers: Mapping[Path, int]) -> dict[Path, torch.nn.Parameter]:
        self._values.load(numbers.values())
        return {path: self._values[number] for path, number in numbers.items()}

    def __iter__(self) -> Iterator[Any]:
        return iter(self._catalog.structure)

    def __len__(self) -> int:
        return len(self._catalog.structure)

    def __contains__(self, key: object) -> bool:
        return self._catalog.find(key) is not None

    def keys(self) -> Any:
        return self._catalog.structure.keys()

    def state_dict(self) -> dict[str, torch.nn.Parameter]:
        """Return every tensor by the name that its module's ``load_state_dict`` expects."""
        catalog = self._catalog
        if any(map(catalog.is_nested, catalog.kept)):
            raise ValueError("nested tensors cannot be in a state_dict: use tree()")
        self._values.load(catalog.kept)
        return {catalog.clean_name(i): self._values[i] for i in catalog.kept}

    def tree(
        self,
        prefix: Iterable[str | int] | None = None,
        *,
        default: Any = None,
        filter_func: FilterFuncType | None = None,
    ) -> Any:
        """Return the saved structure, or a part of it, as nested dicts and lists.

        Args:
            prefix: the path of the part, as a sequence of keys and indices; all of it by default.
            default: returned if the part contains no tensors.
            filter_func: takes the full name of a tensor and returns whether to include it.
        """
        if isinstance(prefix, str | int):
            raise TypeError("prefix is a single key, and must be a sequence of keys and indices")
        below = self._catalog.below(() if prefix is None else tuple(prefix))
        wanted = set(self._catalog.filter(below.values(), filter_func))
        if not wanted:
            return default
        leaves = self._leaves({path: i for path, i in below.items() if i in wanted})
        return paths.tree(leaves, paths.list_or_dict)

    # One by one

    def read_tensors(
        self,
        filter_func: FilterFuncType | None = None,
        num_tensors: int = -1,
        verify_hash: bool | None = None,
    ) -> Iterator[tuple[int, int, str | Path, torch.Tensor]]:
        """Yield module index, type, name and tensor, in the order of the file.

        Starts after the tensor that was yielded last. After a call without ``num_tensors`` has
        reached the end, the next call starts over.

        Args:
            filter_func: takes a name and returns whether to include the tensor.
            num_tensors: the maximum number of tensors; -1 for all that are left.
            verify_hash: whether to check hashes; by default as the constructor was told.
        """
        for i, tensor in self._cursor.read(filter_func, num_tensors, verify_hash, as_stored=False):
            yield *self._described(i), tensor

    def read_numpy_arrays(
        self,
        filter_func: FilterFuncType | None = None,
        num_tensors: int = -1,
        allow_raw_data: bool = False,
        verify_hash: bool | None = None,
    ) -> Iterator[tuple[int, int, str | Path, numpy.ndarray[Any, Any], bool, str | None]]:
        """Like :meth:`read_tensors`, but yield arrays of the stored types instead of tensors.

        Each array is followed by whether numpy lacks its type and, if so, by torch's name of the
        type. The elements of such an array are integers of the same size.

        Raises:
            ValueError: numpy lacks a type, and ``allow_raw_data`` is false.
            RuntimeError: the tensors are not on the CPU.
        """
        if not self._values.on_cpu:
            raise RuntimeError("numpy arrays are on the CPU, so the device must be the CPU")
        for i, tensor in self._cursor.read(filter_func, num_tensors, verify_hash, as_stored=True):
            described = self._described(i)
            yield *described, *as_array(described[-1], tensor, allow_raw_data)

    def _described(self, number: int) -> tuple[int, TensorType, str | Path]:
        catalog = self._catalog
        index = self._values.module_indices[number]
        return index, catalog.type(number), catalog.public_name(number)

    # Modules

    def load_into_module(
        self,
        m: torch.nn.Module,
        filter_func: FilterFuncType | None = None,
        verify_hash: bool | None = None,
    ) -> int:
        """Fill the parameters and buffers of a module that have the names of the tensors.

        The module takes over the memory of loaded tensors without a copy. Parameters and buffers
        keep their objects; tied ones stay tied unless their values differ in the file, and frozen
        ones stay frozen. Tensors on the meta device or made in ``inference_mode`` are replaced, and
        sharded, sparse and quantized ones are replaced by plain ones. A tensor that the module
        lacks is added to it.

        Args:
            m: the module.
            filter_func: takes a name and returns whether to include the tensor.
            verify_hash: whether to check the hashes of tensors that are not loaded yet; by default
                as the constructor was told.

        Returns:
            The number of tensors that were loaded.

        Raises:
            KeyError: the module of a tensor does not exist, or the tensor's name is taken by
                something else.
            ValueError: shapes differ; all of them are listed, and the module is unchanged.
        """
        self._must_be_module(m)
        chosen = list(self._catalog.filter(self._catalog.kept, filter_func))
        if any(map(self._catalog.is_nested, chosen)):
            raise NotImplementedError("nested tensors cannot be loaded into a module: use tree()")
        self._values.load(chosen, verify_hash)
        names = self._catalog.names
        fill_module(m, [Incoming(names[i], self._catalog.type(i), self._values[i]) for i in chosen])
        self._file.finish()
        return len(chosen)

    def verify_module(self, m: torch.nn.Module) -> tuple[bool, list[tuple[Any, bool]]]:
        """Compare a module's tensors with the saved hashes of the tensors that were loaded.

        With the option ``trust``, those without a SHA-256 of their own in the file are compared
        with what is loaded again from it. Tensors of the ``state_dict()`` that the file lacks do
        not match then, unless they are tied to others. What ``filter_func`` has left out is not
        compared.

        Returns:
            Whether all tensors match, and a list of each name with whether its tensor matches.

        Raises:
            RuntimeError: a tensor was not loaded yet.
            ValueError: a tensor of the module has no values. With the option ``trust`` also: it
                may have more than its elements, such as a scale, or the ``state_dict()`` has others
                than the module.
        """
        self._must_be_module(m)
        results = compare_module(m, self._catalog, self._values)
        return all(same for _, same in results), results

    def _must_be_module(self, m: object) -> None:
        if not isinstance(m, torch.nn.Module):
            raise wrong("m", m, "a torch.nn.Module: this object itself is a dict of tensors")

    # The file

    def to_redis(self, redis_client: Any, key_prefix: str, force: bool = False) -> None:
        """Write the bytes of the file to keys of a Redis server.

        Args:
            redis_client: an object with ``set`` and ``exists``, such as ``redis.Redis``. With
                ``force`` it must be one of redis-py.
            key_prefix: the prefix of all keys.
            force: whether to replace the file under the prefix, in one transaction. Otherwise
                tensors whose keys already exist are not written.
        """
        with self._file.opened(self._catalog) as reader:
            internals = torch.classes.tensorizer._Internals(reader)
            write_keys(redis_client, key_prefix, self._catalog, internals, replace=force)

    @property
    def total_bytes_read(self) -> int:
        if not self._file.is_open:
            return self.total_tensor_bytes
        catalog = self._catalog
        loaded = [i for i in catalog.kept if self._values.loaded(i) is not None]
        data = sum(catalog.data_sizes[i] for i in catalog.stored(loaded))
        return min(catalog.header_offsets) + data

    @property
    def cache_status(self) -> str | None:
        """The header ``x-cache-status`` of a cache in front of the web server, or ``None``."""
        headers = self._file.response_headers
        return None if headers is None else headers.get("x-cache-status")

    def close(self) -> None:
        """Close the file. Loaded tensors stay available."""
        self._file.close()

    def __enter__(self) -> TensorDeserializer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # __init__ may have failed early, and during interpreter shutdown modules may be gone.
        if hasattr(self, "_file") and not sys.is_finalizing():
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the constructor's arguments: unpickling opens the file again."""
        if self._encryption is not None:
            raise TypeError(
                "a TensorDeserializer with a key cannot be pickled: it contains a secret"
            )
        file_obj = self._arguments["file_obj"]
        if not isinstance(file_obj, str | bytes | os.PathLike):
            raise TypeError("only a TensorDeserializer of a path or a URI can be pickled")
        # Pickling a Reader raises if the URI or an option contains a secret.
        options = {**self._arguments["options"]}
        pickle.dumps(torch.classes.tensorizer.Reader(to_uri(file_obj), options))
        return {**self._arguments, "options": options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
