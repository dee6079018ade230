"""Fake kernels: they give compilers the shapes and types of results without loading data."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.library import register_fake

from tensorizer_ops import _core, errors
from tensorizer_ops._base.options import as_pairs

# Private in torch, so another version may lack it.
try:
    from torch._library.effects import EffectType

    _register_effect = torch.library._register_effectful_op
except (ImportError, AttributeError):
    _register_effect = None  # type: ignore[assignment]

Options = dict[str, str] | None


def _check_effect(uri: str, options: Options) -> None:
    """Refuse to trace a call without a result if it holds secrets or torch would drop it."""
    _core.refuse_traced_secrets(uri, as_pairs(options))
    if _register_effect is None:
        raise NotImplementedError(
            f"torch {torch.__version__} does not support ops with effects, and would drop this "
            "call from compiled code: call it outside of the compiled function"
        )


Shapes = list[tuple[torch.dtype, list[int]]]


def _read_shapes(uri: str, names: list[str], dtype: torch.dtype | None, options: Options) -> Shapes:
    """Return the types and shapes of tensors of a file; reads only the index."""
    reader = torch.classes.tensorizer.Reader(uri, options)
    torch.classes.tensorizer._Internals(reader).check_traceable()
    stored = reader.load(None, torch.device("meta"), dtype, "none", False)
    if unknown := [name for name in names if name not in stored]:
        reader.shape(unknown[0])  # raises NoSuchTensor
    return [(stored[name].dtype, list(stored[name].shape)) for name in names]


def _shapes(
    uri: str,
    names: list[str],
    dtype: torch.dtype | None,
    options: Options,
    traced: list[str] | None,
) -> Shapes:
    """Return the types and shapes that the call will have: those in ``traced``, or it fails."""
    if traced is None:
        return _read_shapes(uri, names, dtype, options)
    _core.refuse_traced_secrets(uri, as_pairs(options))
    texts = traced[:-1] if traced[-1:] == ["all"] else traced
    if len(texts) != len(names):
        raise errors.InvalidArgument(f"{len(names)} names and {len(texts)} traced shapes")
    return [_parsed(text) for text in texts]


def _parsed(text: str) -> tuple[torch.dtype, list[int]]:
    found = re.fullmatch(r"(\w+)\[((?:\d+(?:, )?)*)\]", text, re.ASCII)
    dtype = getattr(torch, found[1], None) if found else None
    if found is None or not isinstance(dtype, torch.dtype):
        raise errors.InvalidArgument(f"{text!r} in traced is no type and shape")
    return dtype, [int(size) for size in found[2].split(", ") if size]


def _load_tensors(
    uri: str,
    names: list[str],
    *,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    verify: str = "none",
    copy: bool = False,
    threads: int | None = None,
    options: Options = None,
    traced: list[str] | None = None,
) -> list[torch.Tensor]:
    where = torch.device("cpu") if device is None else device
    # A name that is given twice returns two tensors.
    return [
        torch.empty(shape, dtype=stored, device=where)
        for stored, shape in _shapes(uri, names, dtype, options, traced)
    ]


def _load_slices(
    uri: str,
    names: list[str],
    tensors: list[int],
    dims: list[int],
    starts: list[int],
    lengths: list[int],
    steps: list[int] | None = None,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    verify: str = "none",
    copy: bool = False,
    threads: int | None = None,
    options: Options = None,
    traced: list[str] | None = None,
) -> list[torch.Tensor]:
    known = _shapes(uri, names, dtype, options, traced)
    sliced = [list(shape) for _, shape in known]
    steps = [1] * len(tensors) if steps is None else steps
    for place, dim, start, length, step in zip(tensors, dims, starts, lengths, steps, strict=True):
        if not 0 <= place < len(names):
            raise errors.InvalidArgument(
                f"a slice is of tensor number {place} of the {len(names)} names: they are numbered "
                "from 0 on"
            )
        shape = known[place][1]
        fits = 0 <= dim < len(shape) and start >= 0 and step > 0
        if not fits or not 0 <= length <= len(range(start, shape[dim], step)):
            raise errors.InvalidArgument(
                f"tensor {names[place]!r} has the shape {shape}, and dimension {dim} does not have "
                f"{length} elements from {start} on with a step of {step}"
            )
        sliced[place][dim] = length
    where = torch.device("cpu") if device is None else device
    return [
        torch.empty(shape, dtype=stored, device=where)
        for (stored, _), shape in zip(known, sliced, strict=True)
    ]


def _save_tensors(
    uri: str,
    names: list[str],
    tensors: list[torch.Tensor],
    *,
    options: Options = None,
    **how: Any,
) -> None:
    # Outside of tracing, tensors on the meta device also dispatch to this kernel. Such a call has
    # to write its file.
    if tensors and not any(isinstance(tensor, FakeTensor) for tensor in tensors):
        named = dict(zip(names, tensors, strict=True))
        torch.ops.tensorizer.save(uri, named, options=options, **how)
    else:
        _check_effect(uri, options)


def _verify(uri: str, *, options: Options = None, **_: Any) -> None:
    _check_effect(uri, options)


def _crc32(data: torch.Tensor) -> torch.SymInt:
    if not isinstance(data, FakeTensor):
        raise errors.InvalidArgument("data is on the meta device, and has no values")
    return torch.library.get_ctx().new_dynamic_size(min=0, max=(1 << 32) - 1)


def _sha256(data: torch.Tensor) -> torch.Tensor:
    return data.new_empty(32, dtype=torch.uint8)


def _sha256_chunks(data: torch.Tensor, chunk: int) -> torch.Tensor:
    size = data.numel() * data.element_size()
    return data.new_empty((size + chunk - 1) // chunk, 32, dtype=torch.uint8)


register_fake("tensorizer::crc32", _crc32)
register_fake("tensorizer::sha256", _sha256)
register_fake("tensorizer::sha256_chunks", _sha256_chunks)
register_fake("tensorizer::load_tensors", _load_tensors)
register_fake("tensorizer::load_slices", _load_slices)
register_fake("tensorizer::save_tensors", _save_tensors)
register_fake("tensorizer::verify", _verify)

# A compiler that does not know of the effect drops or moves a call that has no result, or whose
# result depends on a file.
if _register_effect is not None:
    for _op in (
        torch.ops.tensorizer.load_tensors.default,
        torch.ops.tensorizer.load_slices.default,
        torch.ops.tensorizer.save_tensors.default,
        torch.ops.tensorizer.verify.default,
    ):
        _register_effect(_op, EffectType.ORDERED)
