"""Compares a module with the tensors that were loaded from a file."""

from __future__ import annotations

from typing import Any

import torch

from tensorizer_ops._base.savable import plain_tensor
from tensorizer_ops._compat.catalog import Catalog
from tensorizer_ops._compat.values import Values


def compare_module(
    module: torch.nn.Module, catalog: Catalog, values: Values
) -> list[tuple[Any, bool]]:
    """Return the name of every tensor, and whether the module's tensor has the saved hashes.

    Raises:
        RuntimeError: a tensor was not loaded yet.
        ValueError: a tensor of the module has no values.
    """
    tensors: dict[str, torch.Tensor] = module.state_dict(keep_vars=True)
    tensors = {**tensors, **dict(module.named_buffers())}
    results: list[tuple[Any, bool]] = []
    for i in catalog.kept:
        value = values.loaded(i)
        name = catalog.public_name(i)
        here = tensors.get(catalog.names[i])
        if here is None:
            here = tensors.get(catalog.clean_name(i))
        if here is not None and value is None:
            raise RuntimeError(f"{name!r} was not loaded yet, and so its hashes are not known")
        if here is None or value is None:
            results.append((name, False))
            continue
        if catalog.data_sizes[i]:
            here = plain_tensor(catalog.names[i], here, "verified")
        same_shape = here.shape == value.shape
        # The file has no data of a meta tensor, so its hashes are those of no bytes.
        stored = here if catalog.data_sizes[i] else torch.empty(0, dtype=here.dtype, device="cpu")
        results.append((name, same_shape and values.matches(i, stored)))
    return results
