"""How vLLM keeps the weights of its layers, and how to bring them into another form for a while."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.fused_moe import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import layerwise

_PLAIN = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod, type(None))


def is_made_over(module: torch.nn.Module) -> bool:
    """Return whether vLLM brings the weights of a module into a form of its own."""
    return type(getattr(module, "quant_method", None)) not in _PLAIN


def hidden_copy(module: torch.nn.Module) -> str | None:
    """Return what a module computes with in place of its parameters, if there is such a thing."""
    if hasattr(module, "kv_b_proj"):  # attention
        return "vLLM computes with products of its kv_b_proj"
    packed = getattr(getattr(module, "cpu_linear", None), "__closure__", None)
    if packed or any(not own.numel() for own in module.parameters(recurse=False)):
        return "vLLM computes with a packed copy of it"
    if is_made_over(module) and is_deferred_attention_layer(module):
        return "vLLM computes with numbers that it has read from it"
    if is_made_over(module) and type(module.quant_method) is not UnquantizedFusedMoEMethod:
        # Kernels of quantized layers keep another form, also in objects outside of the module.
        return "vLLM computes with another form of it"
    return None


def pack_again(module: torch.nn.Module) -> None:
    """Let vLLM pack experts once more, as it does on CPUs only while they have no kernel."""
    method: Any = getattr(module, "quant_method", None)
    if hasattr(method, "moe_kernel"):
        method.moe_kernel = None


class Reshaped:
    """Modules whose tensors have the form that files are loaded into, until a block ends.

    Then they have the attributes that they had before.
    """

    def __init__(self) -> None:
        self._saved: list[tuple[object, dict[str, Any]]] = []
        self._scratch: list[torch.nn.Module] = []

    def __enter__(self) -> Reshaped:
        return self

    def __exit__(self, *error: object) -> None:
        for module in self._scratch:
            layerwise.get_layerwise_info(module).reset()
            layerwise.LOADING_LAYERS.discard(module)
        for owner, attributes in reversed(self._saved):
            vars(owner).clear()
            vars(owner).update(attributes)

    def ignore(self, module: torch.nn.Module) -> None:
        """Let a module take weights, and keep none of them."""
        self._save(module)
        layerwise.restore_layer_on_meta(module, layerwise.get_layerwise_info(module))

    def make_anew(self, module: torch.nn.Module) -> None:
        """Let vLLM make over what a module takes, and copy it to the tensors that it has now."""
        self._save(module)
        self._save(module.quant_method)
        pack_again(module)
        info = layerwise.get_layerwise_info(module)
        info.kernel_tensors = layerwise.get_layer_params_buffers(module)
        info.kernel_non_persistent_buffers = set(module._non_persistent_buffers_set)
        layerwise.restore_layer_on_meta(module, info)
        layerwise.initialize_online_processing(module)
        self._scratch.append(module)

    def finish(self) -> None:
        """Make over what has padding, and therefore never got all of its elements."""
        for module in self._scratch:
            info = layerwise.get_layerwise_info(module)
            if info.can_load() and info.load_numel > 0:
                layerwise._layerwise_process(module, info)

    def _save(self, owner: Any) -> None:
        copies = {
            name: value.copy() if isinstance(value, dict | set) else value
            for name, value in vars(owner).items()
        }
        self._saved.append((owner, copies))
