"""Models in memory: whose they are, and what of them is saved."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.memory import identity
from tensorizer_ops._hf.files import OWN_WEIGHTS


def is_model(model: Any) -> bool:
    """Return whether a model is of transformers or of diffusers."""
    return any(
        kind.__name__ in ("PreTrainedModel", "ModelMixin")
        and kind.__module__.partition(".")[0] in ("transformers", "diffusers")
        for kind in type(model).__mro__
    )


def stays_in_float32(model: Any, name: str, dtype: torch.dtype) -> bool:
    """Return whether diffusers keeps a weight in float32 when the model has a smaller type."""
    parts = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    return dtype in (torch.float16, torch.bfloat16) and not parts.isdisjoint(name.split("."))


def without_ties(model: Any, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return one name of every tensor: the others are those that the model ties to it."""
    tied = getattr(model, "all_tied_weights_keys", None)  # of transformers 5
    patterns = [re.escape(name) for name in tied] if isinstance(tied, dict) else _tied(model)
    groups: dict[object, list[str]] = {}
    for name, tensor in state.items():
        groups.setdefault(identity(tensor), []).append(name)
    names = set()
    for group in groups.values():
        own = [n for n in group if not any(re.fullmatch(each, n) for each in patterns)]
        if len(own) > 1:
            raise errors.InvalidArgument(
                f"tensors {own[0]!r} and {own[1]!r} share memory, which a safetensors file cannot "
                f"say, and the model does not tie them: save {OWN_WEIGHTS} instead"
            )
        names.add((own or group)[0])
    return {name: tensor for name, tensor in state.items() if name in names}


def _tied(model: Any) -> list[str]:
    """Return patterns of the names that transformers 4 ties."""
    return [f".*{each}" for each in getattr(model, "_tied_weights_keys", None) or ()]


def state_of(model: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a model under the names that its own save_pretrained() gives them."""
    state: dict[str, torch.Tensor] = model.state_dict()
    for name, tensor in state.items():
        if tensor.is_meta:
            raise errors.InvalidArgument(
                f"{name!r} is on the meta device: its values are offloaded, or were never loaded"
            )
    if any(hasattr(part, "_orig_mod") for part in model.modules()):  # of torch.compile()
        state = {
            ".".join(part for part in name.split(".") if part != "_orig_mod"): tensor
            for name, tensor in state.items()
        }
    if not hasattr(model, "save_config"):  # which models of diffusers have
        with contextlib.suppress(ImportError):  # transformers 4 renames nothing
            from transformers.core_model_loading import revert_weight_conversion

            state = revert_weight_conversion(model, state)
    return state


def save_config(model: Any, folder: str) -> None:
    """Write the configs of a model."""
    if hasattr(model, "save_config"):  # diffusers
        model.save_config(folder)
        return
    model.config.dtype = model.dtype
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
