"""What each op is to a compiler: the shapes and types of its results, without its work."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.library import register_fake

Options = dict[str, str] | None


def _like_stored(
    uri: str,
    names: list[str] | None,
    device: torch.device | None,
    dtype: torch.dtype | None,
    options: Options,
) -> dict[str, torch.Tensor]:
    # Read from the file itself, so that a program is traced with the shapes that it will load.
    reader = torch.classes.tensorizer.Reader(uri, options)
    stored = reader.load(names, torch.device("meta"), dtype, "none", False, 0)
    where = torch.device("cpu") if device is None else device
    return {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device=where)
        for name, tensor in stored.items()
    }


def _load_tensors(
    uri: str,
    names: list[str],
    *,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    verify: str = "none",
    copy: bool = False,
    threads: int = 0,
    options: Options = None,
) -> list[torch.Tensor]:
    tensors = _like_stored(uri, names, device, dtype, options)
    return [torch.empty_like(tensors[name]) for name in names]


def _save_tensors(uri: str, names: list[str], tensors: list[torch.Tensor], **options: Any) -> None:
    # Tensors on the meta device bring a call here that nobody traces: it has a file to write.
    if tensors and not any(isinstance(tensor, FakeTensor) for tensor in tensors):
        torch.ops.tensorizer.save(uri, dict(zip(names, tensors, strict=True)), **options)


def _verify(uri: str, **_: Any) -> None:
    return None


register_fake("tensorizer::load_tensors", _load_tensors)
register_fake("tensorizer::save_tensors", _save_tensors)
register_fake("tensorizer::verify", _verify)
