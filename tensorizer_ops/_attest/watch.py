"""Comparing what a loader would write to tensors with what they have."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tensorizer_ops._attest.compared import Attestation, Compared, Difference, difference, index_of
from tensorizer_ops._base.boxes import strides_of
from tensorizer_ops._base.memory import Span, identity, span
from tensorizer_ops._front.serving import Weight

_aten = torch.ops.aten
# The operations that need nothing of what their first argument has.
_WRITES = (_aten.copy_.default, _aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default)


class _Watched(NamedTuple):
    names: list[str]  # several if they are tied
    tensor: torch.Tensor
    span: Span
    parts: dict[Hashable, int]  # that were compared, and how many elements they have
    differences: dict[str, Difference]  # by what it differs from


class Watch(TorchDispatchMode):
    """Compares what its block would write to tensors with what they have, and writes nothing.

    The block copies from a :class:`Weight` of a :class:`Compared`, or from what it makes of one.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.attestation = Attestation([], {}, {})
        self._tensors = dict(tensors)
        self._data = {name: tensor.data for name, tensor in tensors.items()}
        self._watched: dict[Hashable, list[_Watched]] = defaultdict(list)  # by storage
        names: dict[Hashable, list[str]] = defaultdict(list)
        for name, tensor in tensors.items():
            names[identity(tensor)].append(name)
        for tied in names.values():
            tensor = self._data[tied[0]]
            where = span(tensor)
            if where is None or where.begin == where.end:
                self.attestation.not_compared[tied[0]] = "it has no elements in memory of its own"
            else:
                self._watched[where.storage].append(_Watched(tied, tensor, where, {}, {}))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        found = self.attestation
        for name, data in self._data.items():
            if self._tensors[name].shape != data.shape or span(self._tensors[name]) != span(data):
                self._tensors[name].data = data
                found.not_compared[name] = "the loader gives it other memory"
        for watched in (each for group in self._watched.values() for each in group):
            name = watched.names[0]
            missing = watched.tensor.numel() - sum(watched.parts.values())
            if differences := watched.differences.items():
                texts = [each.text(watched.tensor.shape, other) for other, each in differences]
                found.different[name] = "; ".join(texts)
            elif name in found.not_compared:
                continue
            elif not (watched.parts or isinstance(self._tensors[name], torch.nn.Parameter)):
                continue  # a buffer that is in no file
            elif missing > 0:
                found.not_compared[name] = f"{missing} of its elements are from no file"
            else:
                found.compared.append(name)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        changed = [each for tensor in _written(func, args, kwargs) for each in self._owners(tensor)]
        if not changed:
            return func(*args, **kwargs)
        if func in _WRITES:
            for watched in changed:
                self._compare(watched, func, *args)
        else:
            for watched in changed:
                self.attestation.not_compared[watched.names[0]] = f"the loader changes it by {func}"
        return args[0]

    def _owners(self, tensor: torch.Tensor) -> list[_Watched]:
        if isinstance(tensor, Weight) or (where := span(tensor)) is None:
            return []
        return [
            each
            for each in self._watched.get(where.storage, ())
            if where.begin < each.span.end and each.span.begin < where.end
        ]

    def _compare(self, watched: _Watched, func: Any, target: torch.Tensor, *given: Any) -> None:
        source = given[0] if func is _aten.copy_.default else None
        if isinstance(source, Weight) and source.shape == target.shape:
            stored = source.stored
            assert isinstance(stored, Compared)
            found, other = stored.difference(source.which, target), f"{stored.name!r} in the file"
        else:
            expected = torch.empty_like(target)
            func(expected, *given)
            found, other = difference(expected, target), "what the loader makes of the file"
        watched.parts[span(target), target.shape, target.stride()] = target.numel()
        if found:
            places = [_place_in(watched, target, place) for place in found.places]
            watched.differences[other] = Difference(places, found.count)


def _place_in(watched: _Watched, part: torch.Tensor, place: int) -> int:
    """Return the place of an element in the whole, in row-major order."""
    where = span(part)
    assert where is not None
    whole = watched.tensor
    left = (where.begin - watched.span.begin) // whole.itemsize
    left += sum(map(operator.mul, index_of(place, part.shape), part.stride()))
    found = 0
    row_major = dict(enumerate(strides_of(whole.shape)))
    for dim in sorted(row_major, key=whole.stride, reverse=True):
        index, left = divmod(left, max(whole.stride(dim), 1))
        found += index * row_major[dim]
    return found


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    declared = func._schema.arguments
    names = [argument.name for argument in declared]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    for argument in declared:
        if argument.alias_info is not None and argument.alias_info.is_write:
            for value in tree_leaves(given.get(argument.name)):
                if isinstance(value, torch.Tensor):
                    yield value
