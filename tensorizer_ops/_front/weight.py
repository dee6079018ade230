"""Tensors of files, whole or in parts, which are read when something needs their elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from typing import Any, TypeVar, cast

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map_only

from tensorizer_ops import errors
from tensorizer_ops._base.boxes import strides_of
from tensorizer_ops._base.memory import identity, is_plain, weak_storage
from tensorizer_ops._front.reader import Reader

# Tensors below this size, in bytes, are loaded whole: a request for a part takes longer.
_SMALL = 1 << 20
# Bytes of small tensors that are read at a time.
_GROUP = 32 << 20

Index = tuple[range | int, ...]  # a part of a tensor, by dimension


class Stored:
    """A tensor of a file, which all its parts share."""

    def __init__(self, reader: Reader, name: str) -> None:
        self.name = name
        shape = reader.shape(name)
        self.everything: Index = tuple(map(range, shape))
        self.strides = strides_of(shape)
        self.dtype = reader.dtype(name)
        self._reader = reader
        self._whole: torch.Tensor | None = None

    def load(self, index: Index, device: torch.device | str) -> torch.Tensor:
        """Load a part."""
        # Hashes of whole tensors cannot verify a part.
        slices = {} if index == self.everything else {self.name: as_slices(index)}
        with torch.inference_mode(False):
            return self._reader.load([self.name], slices=slices, device=device)[self.name]

    @property
    def is_read(self) -> bool:
        """Whether all of the tensor is in memory."""
        return self._whole is not None

    def keep(self, whole: torch.Tensor) -> None:
        """Take over all of the tensor."""
        self._whole = whole

    def whole(self) -> torch.Tensor:
        """Load the tensor, once."""
        if self._whole is None:
            self._whole = self.load(self.everything, "cpu")
        return self._whole

    def loaded(self, index: Index) -> torch.Tensor | None:
        """Return a part of the tensor if that has been loaded."""
        return None if self._whole is None else self._whole[as_slices(index)]


_Stored = TypeVar("_Stored", bound=Stored)


def stored_in(reader: Reader, names: Sequence[str], kind: type[_Stored]) -> Iterator[_Stored]:
    """Yield tensors of a file. Small ones have been read, many at a time."""
    listed = torch.classes.tensorizer._Internals(reader.script_object).list()
    sizes = dict(zip(reader, listed.memory_sizes, strict=True))
    small = iter([name for name in names if sizes[name] < _SMALL])
    loaded: dict[str, torch.Tensor] = {}
    for name in names:
        # Not only where the first is needed: between parts of large ones, it seems that the file
        # is read in order, and more would be read ahead.
        if not loaded and (group := _group(small, sizes)):
            with torch.inference_mode(False):
                loaded = reader.load(group, device="cpu")
        stored = kind(reader, name)
        if name in loaded:
            stored.keep(loaded.pop(name))
        yield stored


def _group(names: Iterator[str], sizes: Mapping[str, int]) -> list[str]:
    group, size = [], 0
    while size < _GROUP and (name := next(names, None)) is not None:
        group.append(name)
        size += sizes[name]
    return group


def as_slices(index: Index) -> tuple[slice | int, ...]:
    """Return what takes a part of a tensor."""
    return tuple(
        slice(part.start, part.stop, part.step) if isinstance(part, range) else part
        for part in index
    )


class Weight(torch.Tensor):
    """A tensor of a file, or a part of it, which is read when an operation needs its elements.

    Slices, indices and the parts of ``split``, ``chunk`` and ``unbind`` are again such tensors, and
    read nothing. ``copy_`` from one reads it onto the device of its destination, and keeps nothing.
    Any other operation reads it once, onto the CPU, and goes on with a plain tensor. It reads the
    whole tensor if it writes to the part, or returns a view of it, because all parts share memory.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    stored: Stored
    which: Index
    _part: torch.Tensor | None

    @staticmethod
    def __new__(cls, stored: Stored, index: Index | None = None) -> Weight:
        index = stored.everything if index is None else index
        shape, strides, offset = [], [], 0
        for part, stride in zip(index, stored.strides, strict=True):
            if isinstance(part, range):
                shape.append(len(part))
                strides.append(part.step * stride)
            offset += (part.start if isinstance(part, range) else part) * stride
        # A tensor that is made in inference mode cannot be a view of one that is not.
        with torch.inference_mode(False):
            made: Weight = torch.Tensor._make_wrapper_subclass(
                cls,
                shape,
                strides=strides,
                storage_offset=offset,
                dtype=stored.dtype,
                # Torch would take it for one of the CPU with memory: as the data of another tensor.
                device=torch.device("meta"),
                dispatch_device=True,
            )
        made.stored, made.which, made._part = stored, index, None
        return made

    def __init__(self, *arguments: object) -> None:
        super().__init__()

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"<weight {self.stored.name!r}: {self.dtype}, {list(self.shape)}>"

    def _read(self) -> torch.Tensor:
        """Return the elements as a plain tensor on the CPU, to be read only."""
        if self.which == self.stored.everything:
            return self.stored.whole()
        part = self.stored.loaded(self.which)
        if part is None:
            if self._part is None:
                self._part = self.stored.load(self.which, "cpu")
            part = self._part
        return part

    def _unchangeable(self, how: str) -> errors.InvalidArgument:
        return errors.InvalidArgument(
            f"{how} cannot change the shape or the memory of {self!r}: use what returns another "
            "tensor, such as t() in place of t_()"
        )

    def _set_data(self, data: torch.Tensor) -> None:
        raise self._unchangeable("an assignment to data")

    data = property(torch.Tensor.data.__get__, _set_data)  # type: ignore[attr-defined]

    def in_memory(self) -> list[torch.Tensor]:
        """Return the plain tensors that have been loaded for this one."""
        return [each for each in (self.stored._whole, self._part) if each is not None]

    def _shared(self) -> torch.Tensor:
        """Return the elements in memory that all parts of the tensor share."""
        return self.stored.whole()[as_slices(self.which)]

    def _copy_to(self, target: torch.Tensor, *rest: Any, **kwargs: Any) -> None:
        """Copy the elements, and keep nothing."""
        target.copy_(self._to_copy(target.device), *rest, **kwargs)

    def _to_copy(self, device: torch.device) -> torch.Tensor:
        if device.type == "meta":
            return torch.empty(self.shape, dtype=self.dtype, device=device)
        part = self.stored.loaded(self.which)
        if part is None:
            part = self._part
        return self.stored.load(self.which, device) if part is None else part

    def _on_meta(self) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device="meta")

    def _indexed(self, dim: int, index: slice | int) -> Weight:
        place = [i for i, part in enumerate(self.which) if isinstance(part, range)][dim]
        part = cast(range, self.which[place])[index]
        if isinstance(part, range) and not part:
            part = range(0)
        return type(self)(self.stored, (*self.which[:place], part, *self.which[place + 1 :]))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return torch.device("cpu")
        # In inference mode, operations come here that are otherwise divided into others before.
        divided = func.decompose(*args, **kwargs)
        if divided is not NotImplemented:
            return divided
        if func in _VIEWS and not kwargs:
            func(args[0]._on_meta(), *args[1:])  # raises for wrong arguments
            return _VIEWS[func](*args)
        if func is torch.ops.aten.copy_.default and not isinstance(args[0], Weight):
            target, source, *rest = args
            source._copy_to(target, *rest, **kwargs)
            return target
        declared = func._schema.arguments
        shared = {argument.name for argument in declared if argument.alias_info is not None}
        result, parts = _on_plain(func, args, kwargs, shared)
        if parts and any(_may_share(each, parts) for each in tree_leaves(result)):
            # It returns a view, and does not declare that.
            result, _ = _on_plain(func, args, kwargs, {argument.name for argument in declared})
        return result


def _on_plain(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], shared: Set[str]
) -> tuple[Any, set[StorageWeakRef]]:
    """Call an operation with plain tensors: of the whole for those arguments that are shared.

    Return also the storages of parts that were read for the others.
    """
    names = [argument.name for argument in func._schema.arguments]
    plain = [_plain(value, name in shared) for name, value in zip(names, args, strict=False)]
    given = {name: _plain(value, name in shared) for name, value in kwargs.items()}
    returned = [each.alias_info for each in func._schema.returns if each.alias_info]
    is_view = any(not alias.is_write for alias in returned)
    pairs = zip(tree_leaves((args, kwargs)), tree_leaves((plain, given)), strict=True)
    own = [(weight, each, identity(each)) for weight, each in pairs if weight is not each]
    # As the weight itself is made.
    with torch.inference_mode(False) if is_view else nullcontext():
        result = func(*plain, **given)
    for weight, each, before in own:
        if identity(each) != before:
            raise weight._unchangeable(str(func))
    return result, {weak_storage(each) for weight, each, _ in own if each is weight._part}


def _may_share(value: object, storages: Set[StorageWeakRef]) -> bool:
    """Return whether a tensor has memory of these; a sparse one may, and does not tell."""
    return isinstance(value, torch.Tensor) and (
        not is_plain(value) or weak_storage(value) in storages
    )


def _plain(value: Any, shared: bool) -> Any:
    """Replace each weight in an argument by a plain tensor."""
    return tree_map_only(Weight, Weight._shared if shared else Weight._read, value)


def _split(weight: Weight, sizes: Sequence[int], dim: int = 0) -> list[Weight]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    ends = zip(starts, sizes, strict=True)
    return [weight._indexed(dim, slice(start, start + size)) for start, size in ends]


def _split_evenly(weight: Weight, size: int, dim: int = 0) -> list[Weight]:
    length = weight.shape[dim]
    return [weight._indexed(dim, slice(i, i + size)) for i in range(0, max(length, 1), size or 1)]


_aten = torch.ops.aten
# The operations that read nothing.
_VIEWS: dict[Any, Callable[..., Weight | list[Weight]]] = {
    _aten.alias.default: lambda weight: type(weight)(weight.stored, weight.which),
    _aten.detach.default: lambda weight: type(weight)(weight.stored, weight.which),
    _aten.select.int: lambda weight, dim, i: weight._indexed(dim, i),
    _aten.slice.Tensor: lambda weight, dim=0, start=None, end=None, step=1: weight._indexed(
        dim, slice(start, end, step)
    ),
    _aten.split.Tensor: _split_evenly,
    _aten.split_with_sizes.default: _split,
    _aten.unbind.int: lambda weight, dim=0: [
        weight._indexed(dim, i) for i in range(weight.shape[dim])
    ],
}


def _method_on_plain(name: str, shared: bool) -> Callable[..., Any]:
    def call(weight: Weight, *args: Any, **kwargs: Any) -> Any:
        return getattr(_plain(weight, shared), name)(*_plain(args, False), **kwargs)

    return call


# Methods that look into the memory of a tensor and are no operations.
for _name in ("__deepcopy__", "__reduce_ex__", "tolist"):
    setattr(Weight, _name, _method_on_plain(_name, shared=False))
for _name in (
    *("__array__", "__dlpack__", "apply_", "data_ptr", "map2_", "map_", "numpy", "storage"),
    "untyped_storage",
):
    setattr(Weight, _name, _method_on_plain(_name, shared=True))
