"""Which tensors are made of those of a file, and of nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from tensorizer_ops._attest.compared import Compared
from tensorizer_ops._attest.operations import is_divided, outputs_of, tensors_in
from tensorizer_ops._base.coverage import Layout, uncovered
from tensorizer_ops._base.memory import (
    fills_storage,
    has_memory,
    is_allocated_by_torch,
    is_plain,
    weak_storage,
)
from tensorizer_ops._front.weight import Weight

_aten = torch.ops.aten
# The operations that need nothing of what their first argument has.
WRITES = (_aten.copy_.default, _aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default)
# The names of torch's operations that take only the shape and type of a tensor.
_LIKE, _NEW = "_like", "new_"
# The namespaces of operations that receive from other ranks, or load from any file.
_FROM_ELSEWHERE = (
    *("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"),
    *("tensorizer", "tensorizer_device"),
)


# The parts of memory that are made of the file, as long as no operation has written to it.
_UNFILLED: frozenset[Layout] = frozenset()


@dataclass
class _Memory:
    """What is known of a storage."""

    parts: set[Layout] | frozenset[Layout] | None  # that are made of the file; None: all of it
    names: frozenset[str]  # of the tensors of the file that these are made of


class Origins:
    """Tells tensors that are made of a file, or of no tensor, such as zeros, from all others.

    It is shown each operation. Memory that none of them has filled counts as not of the file, and
    so does what other ranks send. So do sparse, nested and quantized tensors, which are not
    followed.
    """

    def __init__(self) -> None:
        self._storages: dict[StorageWeakRef, _Memory] = {}  # by weak_storage()
        self._limit = 1024

    def is_of_file(self, source: torch.Tensor | torch.UntypedStorage) -> bool:
        """Return whether all elements are made of the file, or of no tensor."""
        if isinstance(source, torch.UntypedStorage):
            return self._parts_of(source) is None
        if isinstance(source, Weight):
            return is_compared(source) and all(
                self._parts_of(each, None) is None for each in source.in_memory()
            )
        if source.is_meta or source.numel() == 0:
            return True
        if is_divided(source) or not has_memory(source):
            return False
        parts = self._parts_of(source)
        if parts is None:
            return True
        if not parts or uncovered(Layout.of(source), parts):
            return False
        if fills_storage(source):
            self._storages[weak_storage(source)].parts = None  # which is found faster
        return True

    def names_of(self, sources: Iterable[torch.Tensor | torch.UntypedStorage]) -> frozenset[str]:
        """Return the names of the tensors of the file that these are made of."""
        names: set[str] = set()
        for source in sources:
            own: Sequence[torch.Tensor | torch.UntypedStorage] = [source]
            if isinstance(source, Weight):
                names.add(source.stored.name)
                own = source.in_memory()
            for each in own:
                if isinstance(each, torch.UntypedStorage) or is_plain(each):
                    known = self._storages.get(weak_storage(each))
                    names |= known.names if known else set()
        return frozenset(names)

    def _parts_of(
        self,
        source: torch.Tensor | torch.UntypedStorage,
        unknown: frozenset[Layout] | None = _UNFILLED,
    ) -> set[Layout] | frozenset[Layout] | None:
        known = self._storages.get(weak_storage(source))
        return known.parts if known else unknown

    def follow(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        written: list[torch.Tensor],
        result: Any,
    ) -> None:
        """Learn what an operation has made, and of what."""
        changed = list(written)
        if func.namespace != "aten":
            changed += tensors_in((args, kwargs))  # some write more than they declare, as in c10d
        returned = list(tensors_in(result))
        if changed or returned:
            sources = self._sources(func, args, kwargs, written)
            is_of_file = self._makes_of_file(func, sources)
            names = self.names_of(sources)
            is_unfilled = func.namespace == "aten" and _leaves_unfilled(func)
            for tensor in _in_memory(changed):
                self._learn(tensor, is_of_file and not is_unfilled, names)
            if is_of_file:
                made = _UNFILLED if is_unfilled else None
                given = self._given(func, args, kwargs)
                for storage in map(weak_storage, _in_memory(returned)):
                    if storage not in given:
                        self._storages.setdefault(storage, _Memory(made, names))
        if len(self._storages) > self._limit:
            self._storages = {
                storage: known for storage, known in self._storages.items() if not storage.expired()
            }
            self._limit = max(self._limit, 2 * len(self._storages))

    def forget(self, written: torch.Tensor) -> None:
        """Learn that it is not known what a tensor has."""
        for each in _in_memory([written]):
            self._learn(each, False, frozenset())

    def _given(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> set[StorageWeakRef]:
        """Return the storages that an operation has not made: of which it may return any part."""
        if func is _aten.lift_fresh.default:  # which makes none, but stands for what does
            return set()
        plain = (each for each in tensors_in((args, kwargs)) if not isinstance(each, Weight))
        return {weak_storage(each) for each in plain if is_plain(each)}

    def _learn(self, written: torch.Tensor, is_of_file: bool, names: frozenset[str]) -> None:
        known = self._storages.setdefault(weak_storage(written), _Memory(_UNFILLED, frozenset()))
        if not is_of_file:
            known.parts = set()
        elif _replaces_all(written):
            known.parts, known.names = None, names
        elif has_memory(written) and written.numel():
            known.names |= names
            if isinstance(known.parts, frozenset):
                known.parts = set(known.parts)
            if known.parts is not None:
                known.parts.add(Layout.of(written))

    def _makes_of_file(
        self, func: Any, sources: Collection[torch.Tensor | torch.UntypedStorage]
    ) -> bool:
        if func.namespace in _FROM_ELSEWHERE:
            return False
        is_aten = func.namespace == "aten"
        if not sources:  # other operations may return what they keep, or read files
            return is_aten and func is not _aten.from_file.default
        if func is _aten.lift_fresh.default:  # of what torch.tensor() makes, or from_numpy()
            return all(
                self.is_of_file(each) or is_allocated_by_torch(each) for each in tensors_in(sources)
            )
        return all(map(self.is_of_file, sources))

    def _sources(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        written: list[torch.Tensor],
    ) -> list[torch.Tensor | torch.UntypedStorage]:
        """Return what an operation reads, as far as its arguments tell."""
        is_aten = func.namespace == "aten"
        name = func._schema.name.partition("::")[2]
        # A write does not read what it replaces. A weight does not tell which part that is.
        is_replaced = func in WRITES and not isinstance(args[0], Weight)
        is_pattern = is_aten and (name.endswith(_LIKE) or name.startswith(_NEW))
        read = args[1:] if is_replaced or is_pattern else args
        outputs = outputs_of(func)
        kwargs = {key: value for key, value in kwargs.items() if key not in outputs}
        sources = [
            leaf
            for leaf in tree_leaves((read, kwargs))
            if isinstance(leaf, torch.Tensor | torch.UntypedStorage)
        ]
        if not is_aten:  # which do not declare that they only write
            unread = {id(each) for each in written if self._is_unfilled(each)}
            sources = [each for each in sources if id(each) not in unread]
        return sources

    def _is_unfilled(self, tensor: torch.Tensor) -> bool:
        return is_plain(tensor) and self._parts_of(tensor, None) is _UNFILLED


def _leaves_unfilled(func: Any) -> bool:
    """Return whether one of torch's operations makes memory without giving it values."""
    return "empty" in func._schema.name or "resize" in func._schema.name


def is_compared(weight: Weight) -> bool:
    """Return whether a weight is of the file that is being compared, and not of another one."""
    return isinstance(weight.stored, Compared) and weight.stored.is_open


def _in_memory(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the plain tensors that have the elements of these."""
    for tensor in tensors:
        if isinstance(tensor, Weight):
            yield from tensor.in_memory()
        elif is_plain(tensor):
            yield tensor


def _replaces_all(target: torch.Tensor) -> bool:
    """Return whether a write to a tensor replaces all that is in its storage."""
    return (
        is_plain(target)
        and fills_storage(target)
        and 0 not in target.stride()
        and (target.numel() == 0 or not Layout.of(target).overlaps_itself())
    )
