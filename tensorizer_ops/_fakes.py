"""What each op is to a compiler: the shapes and types of its results, without its work."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.library import register_fake

# Private in torch, so perhaps not there in the next one.
try:
    from torch._library.effects import EffectType

    _register_effect = torch.library._register_effectful_op
except (ImportError, AttributeError):
    _register_effect = None  # type: ignore[assignment]

Options = dict[str, str] | None


def _need_effects() -> None:
    if _register_effect is None:
        raise NotImplementedError(
            f"torch {torch.__version__} cannot be told that this call has an effect, and would "
            "drop it from compiled code: call it outside of what is compiled"
        )


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
    else:
        _need_effects()


def _verify(uri: str, **_: Any) -> None:
    _need_effects()


register_fake("tensorizer::load_tensors", _load_tensors)
register_fake("tensorizer::save_tensors", _save_tensors)
register_fake("tensorizer::verify", _verify)

# A call without a result, or whose result depends on a file, is dropped or moved by a compiler that
# is not told of its effect.
if _register_effect is not None:
    for _op in (
        torch.ops.tensorizer.load_tensors.default,
        torch.ops.tensorizer.save_tensors.default,
        torch.ops.tensorizer.verify.default,
    ):
        _register_effect(_op, EffectType.ORDERED)
