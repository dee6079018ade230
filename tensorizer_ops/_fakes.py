"""What each op is to a compiler: the shapes and types of its results, without its work."""

from __future__ import annotations

from typing import Any

import torch
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


@register_fake("tensorizer::load")
def _load(
    uri: str,
    *,
    names: list[str] | None = None,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    verify: str = "none",
    copy: bool = False,
    threads: int = 0,
    options: Options = None,
) -> dict[str, torch.Tensor]:
    return _like_stored(uri, names, device, dtype, options)


@register_fake("tensorizer::load_tensors")
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


@register_fake("tensorizer::save")
def _save(uri: str, tensors: dict[str, torch.Tensor], **_: Any) -> None:
    return None


@register_fake("tensorizer::save_tensors")
def _save_tensors(uri: str, names: list[str], tensors: list[torch.Tensor], **_: Any) -> None:
    return None


@register_fake("tensorizer::verify")
def _verify(uri: str, **_: Any) -> None:
    return None


@register_fake("tensorizer::names")
def _names(uri: str, *, options: Options = None) -> list[str]:
    names: list[str] = torch.classes.tensorizer.Reader(uri, options).names()
    return names
