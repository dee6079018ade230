"""Which tensors are made of those of a file, and of nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tensorizer_ops._attest.compared import Compared
from tensorizer_ops._attest.operations import (
    is_bounded,
    is_divided,
    outputs_of,
    tensors_in,
)
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
    *("c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd"),
    *("_dtensor", "fsdp", "symm_mem"),
    *("tensorizer", "tensorizer_device"),
    # Those of torch's own that may also leave memory unfilled, or read what is beside a tensor.
    *("prims", "rngprims", "debugprims", "inductor", "inductor_prims", "static_runtime"),
    *("quantized", "_quantized", "quantization", "quantized_decomposed", "_native", "_test"),
    *("mkldnn", "mkldnn_prepacked", "mkl", "onednn", "sparse", "xnnpack"),
)


# The parts of memory that are made of the file, as long as no operation has written to it.
_UNFILLED: frozenset[Layout] = frozenset()


class Origins:
    """Tells tensors that are made of a file, or of no tensor, such as zeros, from all others.

    It is shown each operation. Memory that none of them has filled counts as not of the file, and
    so does what other ranks send. So do sparse, nested and quantized tensors, which are not
    followed.
    """

    def __init__(self) -> None:
        # By weak_storage(), the parts of memory that are made of the file.
        self._storages: dict[StorageWeakRef, set[Layout] | frozenset[Layout]] = {}
        self._limit = 1024

    def is_of_file(self, source: torch.Tensor) -> bool:
        """Return whether all elements are made of the file, or of no tensor."""
        if isinstance(source, Weight):
            known = (each for each in source.in_memory() if weak_storage(each) in self._storages)
            return is_compared(source) and all(map(self.is_of_file, known))
        if is_divided(source) or not has_memory(source):
            return False
        if source.numel() == 0:
            return True
        storage, layout = weak_storage(source), Layout.of(source)
        parts = self._storages.get(storage, _UNFILLED)
        if not parts or uncovered(layout, parts):
            return False
        if _has_all(source):
            self._storages[storage] = {layout}  # which is found faster
        return True

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
            is_of_file = self._makes_of_file(func, args, kwargs, written)
            is_unfilled = func.namespace == "aten" and _leaves_unfilled(func)
            for tensor in _in_memory(changed):
                self._learn(tensor, is_of_file and not is_unfilled)
            if is_of_file:
                self._learn_made(func, (args, kwargs), returned, is_unfilled)
        if len(self._storages) > self._limit:
            self._storages = {
                storage: known for storage, known in self._storages.items() if not storage.expired()
            }
            self._limit = max(self._limit, 2 * len(self._storages))

    def forget(self, written: torch.Tensor) -> None:
        """Learn that it is not known what a tensor has."""
        for each in _in_memory([written]):
            self._learn(each, False)

    def _learn_made(
        self, func: Any, given: Any, returned: list[torch.Tensor], is_unfilled: bool
    ) -> None:
        """Learn what an operation has made of the file, and not what it has returned a view of."""
        loaded, others = dict[StorageWeakRef, torch.Tensor](), dict[StorageWeakRef, torch.Tensor]()
        for each in tensors_in(given):
            own = loaded if isinstance(each, Weight) else others
            own.update((weak_storage(tensor), tensor) for tensor in _in_memory([each]))
        if func is _aten.lift_fresh.default:  # which makes nothing, but stands for what does
            others.clear()
        made = [(weak_storage(each), each) for each in _in_memory(returned)]
        made = [(each, tensor) for each, tensor in made if each not in self._storages]
        for storage, tensor in made:
            if is_unfilled:
                self._storages[storage] = _UNFILLED
            elif storage in loaded or storage not in others:
                self._learn(loaded.get(storage, tensor), True)

    def _learn(self, written: torch.Tensor, is_of_file: bool) -> None:
        storage = weak_storage(written)
        if not is_of_file:
            self._storages[storage] = set()
        elif has_memory(written) and written.numel():
            parts = self._storages.get(storage, _UNFILLED)
            if isinstance(parts, frozenset) or _has_all(written):
                parts = self._storages[storage] = set()
            parts.add(Layout.of(written))

    def _makes_of_file(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        written: list[torch.Tensor],
    ) -> bool:
        if func.namespace in _FROM_ELSEWHERE:
            return False
        if func is _aten.lift_fresh.default:  # of what torch.tensor() makes, or from_numpy()
            return self.is_of_file(args[0]) or is_allocated_by_torch(args[0])
        is_aten = func.namespace == "aten"
        is_known = not is_aten or is_bounded(func, args, kwargs)
        name = func._schema.name.partition("::")[2]
        # A write does not read what it replaces. A weight does not tell which part that is.
        is_replaced = func in WRITES and not isinstance(args[0], Weight)
        is_pattern = is_aten and (name.endswith(_LIKE) or name.startswith(_NEW))
        read = args[1:] if is_replaced or is_pattern else args
        outputs = outputs_of(func)
        kwargs = {key: value for key, value in kwargs.items() if key not in outputs}
        sources = [*tensors_in((read, kwargs))]
        if not is_aten:  # which do not declare that they only write
            unread = {id(each) for each in written if self._is_unfilled(each)}
            sources = [each for each in sources if id(each) not in unread]
        if not sources:  # other operations may return what they keep, or read files
            return is_aten and func.overloadpacket is not _aten.from_file
        return is_known and all(map(self.is_of_file, sources))

    def _is_unfilled(self, tensor: torch.Tensor) -> bool:
        return is_plain(tensor) and self._storages.get(weak_storage(tensor)) is _UNFILLED


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


def _has_all(tensor: torch.Tensor) -> bool:
    """Return whether a plain tensor has all that is in its storage."""
    return (
        fills_storage(tensor)
        and 0 not in tensor.stride()
        and (tensor.numel() == 0 or not Layout.of(tensor).overlaps_itself())
    )
