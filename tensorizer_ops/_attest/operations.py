"""What torch's operations write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._pytree import tree_leaves

from tensorizer_ops._base.boxes import strides_of
from tensorizer_ops._base.savable import is_dispatched
from tensorizer_ops._front.weight import Weight

# Subclasses that do not divide an operation into others on plain tensors, which a mode sees.
_NOT_DIVIDED = (Weight, FakeTensor, FunctionalTensor)
# Arguments that normalizations change, which their schemas do not tell.
_STATISTICS = ("running_mean", "running_var")
# The operations of torch that read the elements of their arguments and nothing beside, and fill all
# that they return or write, beside those that work on each element. Others leave gaps, or read
# behind a tensor if its shape is not what they expect.
_BOUNDED = frozenset(
    [
        *("alias", "cat", "clone", "constant_pad_nd", "copy", "dequantize", "detach"),
        *("empty", "empty_like", "empty_strided", "expand_copy", "flip", "gather", "index"),
        *("floor_divide", "block_diag"),
        *("index_copy", "index_fill", "index_put", "index_select", "lift_fresh", "lift_fresh_copy"),
        *("masked_fill", "masked_scatter", "masked_select", "new_empty", "new_empty_strided"),
        *("new_full", "new_ones", "new_zeros", "ones_like", "zeros_like", "full_like"),
        *("permute_copy", "pin_memory", "_pin_memory", "repeat", "repeat_interleave", "resize"),
        *("roll", "scatter", "scatter_add", "select_scatter", "slice_scatter", "stack"),
        *("t_copy", "_to_copy", "transpose_copy", "tril", "triu", "unsafe_chunk", "unsafe_split"),
        *("unsafe_split_with_sizes", "view_copy", "zero", "fill", "squeeze", "t", "transpose"),
        *("unsqueeze", "rand_like", "randn_like", "detach_copy"),
        # Reductions, orders and products.
        *("all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "argsort", "cumprod"),
        *("cumsum", "linalg_vector_norm", "max", "mean", "median", "min", "norm", "prod", "sort"),
        *("std", "std_mean", "sum", "topk", "var", "var_mean"),
        *("addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "dot", "mm", "mv"),
        # Position embeddings of another size.
        *("_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "upsample_bicubic2d"),
        *("upsample_bilinear2d", "upsample_linear1d", "upsample_nearest2d"),
    ]
)


# Of these, those that read or leave gaps in what has another layout than a new tensor.
_OF_PLAIN_LAYOUT = ("arg", "cum", "median", "sort", "topk")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in an argument or a result."""
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def is_divided(tensor: torch.Tensor) -> bool:
    """Return whether the class of a tensor decides what an operation does with the elements."""
    return is_dispatched(tensor) and not isinstance(tensor, _NOT_DIVIDED)


def outputs_of(func: Any) -> set[str]:
    """Return the names of the arguments whose elements an operation replaces, and does not read."""
    return {each.name for each in func._schema.arguments if each.is_out}


def written_by(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[torch.Tensor]:
    """Yield the tensors among the arguments that an operation changes."""
    declared = func._schema.arguments
    names = [argument.name for argument in declared]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    undeclared = _STATISTICS if _updates_statistics(func, given) else ()
    for argument in declared:
        is_declared = argument.alias_info is not None and argument.alias_info.is_write
        if is_declared or argument.name in undeclared:
            yield from tensors_in(given.get(argument.name))


def _updates_statistics(func: Any, given: Mapping[str, Any]) -> bool:
    """Return whether an operation changes the statistics that it gets, which no schema tells."""
    name = func._schema.name
    return (
        name.startswith("aten::")
        and ("batch_norm" in name or "instance_norm" in name)
        and not name.endswith(("_backward", "_functional", "_no_update", "_no_training"))
        and bool(given.get("training", given.get("use_input_stats", True)))
    )


def is_bounded(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether what an operation of torch makes tells only of the elements that it gets."""
    if func.is_view or torch.Tag.pointwise in func.tags:
        return True
    name = func._schema.name.partition("::")[2].removeprefix("_foreach_")
    if name.removesuffix("_") not in _BOUNDED and name not in _BOUNDED:
        return False
    declared = (each.name for each in func._schema.arguments)
    given = {**dict(zip(declared, args, strict=False)), **kwargs}
    if given.get("alpha", 1) == 0:
        return False  # of types of 16 bits, some products are not written at all
    # Some write what is not contiguous as if it were.
    written = tensors_in([given.get(each) for each in outputs_of(func)])
    if not all(each.is_contiguous() for each in written):
        return False
    if name.endswith("_aa") and any(isinstance(each, float) for each in given.values()):
        return False  # such a scale may be another than that of the sizes
    is_plain_only = name.startswith(_OF_PLAIN_LAYOUT)
    return all(
        _is_plainly_laid(each)
        for each in tensors_in(given)
        if is_plain_only or ("upsample" in name and not each.is_floating_point())
    )


def _is_plainly_laid(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has the strides of a new one, also where they do not matter."""
    return tensor.stride() == strides_of(tensor.shape)
