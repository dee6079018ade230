"""The store of a process group, through which ranks exchange short texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

from tensorizer_ops import errors

_Result = TypeVar("_Result")


class Store:
    """The keys of one call. Raises ``Unavailable`` if the store is gone."""

    def __init__(self, group: dist.ProcessGroup, prefix: str) -> None:
        store: Any = _of_store(lambda: distributed_c10d._get_process_group_store(group))
        self._store = distributed_c10d.PrefixStore(prefix, store)
        self.timeout = store.timeout.total_seconds()

    def set(self, key: str, value: str) -> None:
        _of_store(lambda: self._store.set(key, value))

    def get(self, key: str) -> bytes:
        found: bytes = _of_store(lambda: self._store.get(key))
        return found

    def has(self, key: str) -> bool:
        return bool(_of_store(lambda: self._store.check([key])))

    def add(self, key: str, number: int) -> int:
        return int(_of_store(lambda: self._store.add(key, number)))

    def set_once(self, key: str, value: str) -> None:
        """Set a value unless there is one."""
        _of_store(lambda: self._store.compare_set(key, "", value))

    def delete(self, key: str) -> None:
        _of_store(lambda: self._store.delete_key(key))


def _of_store(use: Callable[[], _Result]) -> _Result:
    try:
        return use()
    except RuntimeError as error:
        raise errors.Unavailable(
            "the store of the process group does not answer: the process that keeps it, "
            f"usually rank 0, has ended ({first_line(error)})"
        ) from error


def first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
