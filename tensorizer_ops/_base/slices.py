"""Indices of tensors, as Python writes them, in the form that the ops take."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import check_names, wrong

if TYPE_CHECKING:
    import torch

Index = slice | SupportsIndex | EllipsisType
Slices = Mapping[str, Index | tuple[Index, ...]]


class SlicedDimensions(NamedTuple):
    """The dimensions that are sliced, an element of each list for every one of them."""

    tensors: list[int]  # places in the list of names
    dims: list[int]
    starts: list[int]
    lengths: list[int]
    steps: list[int]
    # For each name: the dimensions with an integer, the last one first. Lists, because compilers
    # cannot look into a dict of the same content.
    dropped: list[tuple[int, ...]]


def of_boxes(boxes: Iterable[tuple[Sequence[int], Sequence[int]]]) -> SlicedDimensions:
    """Return the slices that take one box of each tensor: starts and lengths by dimension."""
    return _listed(
        [
            _Part(dim, start, length, 1, dropped=False)
            for dim, (start, length) in enumerate(zip(starts, lengths, strict=True))
        ]
        for starts, lengths in boxes
    )


def without(
    tensors: Sequence[torch.Tensor], dropped: Sequence[tuple[int, ...]]
) -> list[torch.Tensor]:
    """Return the tensors without the dimensions that were indexed by an integer."""
    kept = []
    for tensor, dims in zip(tensors, dropped, strict=True):
        for dim in dims:
            tensor = tensor.select(dim, 0)
        kept.append(tensor)
    return kept


def resolve(
    names: Sequence[str], slices: Slices, shape_of: Callable[[str], Sequence[int]]
) -> SlicedDimensions:
    """Convert indices to starts, lengths and steps.

    Follows the rules of Python: negative bounds count from the end, and bounds of slices are
    clamped. Raises ``InvalidArgument`` that names the tensor and its shape.
    """
    if not isinstance(slices, Mapping):
        raise wrong("slices", slices, "a dict of names and indices")
    check_names("slices", slices)
    parts: dict[str, list[_Part]] = {}
    for name, index in slices.items():
        parts[name] = _parts(name, list(shape_of(name)), index)
    if missing := parts.keys() - set(names):
        raise errors.InvalidArgument(
            f"slices has tensor {min(missing)!r}, which is not among names: add it there, or do "
            "not give names",
        )
    return _listed([parts.get(name, []) for name in names])


class _Part(NamedTuple):
    dim: int
    start: int
    length: int
    step: int
    dropped: bool


def _listed(tensors: Iterable[list[_Part]]) -> SlicedDimensions:
    sliced = SlicedDimensions([], [], [], [], [], [])
    for place, parts in enumerate(tensors):
        for part in parts:
            sliced.tensors.append(place)
            sliced.dims.append(part.dim)
            sliced.starts.append(part.start)
            sliced.lengths.append(part.length)
            sliced.steps.append(part.step)
        sliced.dropped.append(tuple(part.dim for part in reversed(parts) if part.dropped))
    return sliced


def _parts(name: str, shape: list[int], given: object) -> list[_Part]:
    def refuse(why: str) -> errors.InvalidArgument:
        return errors.InvalidArgument(f"tensor {name!r} has the shape {shape}, and {why}")

    indices = list(given) if isinstance(given, tuple) else [given]
    # `in` would compare, and comparing tensors does not give a bool.
    ellipses = [i for i, index in enumerate(indices) if index is ...]
    if len(ellipses) > 1:
        raise refuse("its index has more than one Ellipsis")
    left = len(shape) - (len(indices) - len(ellipses))
    if left < 0:
        raise refuse(f"its index has {len(indices) - len(ellipses)} dimensions")
    at = ellipses[0] if ellipses else len(indices)
    indices[at : at + 1] = [slice(None)] * left
    return [
        _part(dim, size, index, refuse)
        for dim, (size, index) in enumerate(zip(shape, indices, strict=True))
    ]


def _part(
    dim: int, size: int, index: object, refuse: Callable[[str], errors.InvalidArgument]
) -> _Part:
    if isinstance(index, slice):
        try:
            start, stop, step = index.indices(size)
        except (TypeError, ValueError) as error:
            raise refuse(f"its index {index} for dimension {dim} is invalid: {error}") from None
        if step < 0:
            raise refuse(
                f"its index {index} for dimension {dim} has a negative step, which tensors do not "
                "have: load the slice with a positive step and flip() it"
            )
        # A step beyond the end takes one element, as the size does.
        return _Part(dim, start, len(range(start, stop, step)), min(step, max(size, 1)), False)
    if index is None:
        raise refuse("its index has None, which would add a dimension: unsqueeze() what was loaded")
    if isinstance(index, bool) or not isinstance(index, SupportsIndex):
        raise refuse(
            f"its index for dimension {dim} is {type(index).__name__}: only slices, integers and "
            "Ellipsis say which bytes to load"
        )
    not_integer = f"its index for dimension {dim} is {type(index).__name__} that is no integer"
    # operator.index() takes tensors and arrays of one element, which would add dimensions.
    if getattr(index, "ndim", 0) > 0 or str(getattr(index, "dtype", "")) == "torch.bool":
        raise refuse(not_integer)
    try:
        number = operator.index(index)
    except (TypeError, RuntimeError):
        raise refuse(not_integer) from None
    if not -size <= number < size:
        raise refuse(f"index {number} is out of range for dimension {dim}")
    return _Part(dim, number % size, 1, 1, dropped=True)
