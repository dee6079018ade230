"""Compares a module with the tensors that were loaded from a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorizer_ops._base.memory import copy_bytes
from tensorizer_ops._base.savable import plain_tensor
from tensorizer_ops._base.states import tensors_of, trusted_state
from tensorizer_ops._compat.catalog import Catalog
from tensorizer_ops._compat.values import Values


def compare_module(
    module: torch.nn.Module, catalog: Catalog, values: Values
) -> list[tuple[Any, bool]]:
    """Return the name of every tensor, and whether the module's tensor has the saved hashes.

    Raises:
        RuntimeError: a tensor was not loaded yet.
        ValueError: a tensor of the module has no values. If the file must be signed also: it may
            have more than its elements, or the ``state_dict()`` has others than the module.
    """
    stored = {name for i in catalog.kept for name in (catalog.names[i], catalog.clean_name(i))}
    tensors = (trusted_state if values.must_be_signed else tensors_of)(module, stored)
    with values.comparing() as matches:
        return [
            (catalog.public_name(i), _is_same(tensors, i, catalog, values, matches))
            for i in catalog.kept
        ]


def _is_same(
    tensors: dict[str, torch.Tensor],
    number: int,
    catalog: Catalog,
    values: Values,
    matches: Callable[[int, torch.Tensor], bool],
) -> bool:
    value, name = values.loaded(number), catalog.public_name(number)
    here = tensors.get(catalog.names[number])
    if here is None:
        here = tensors.get(catalog.clean_name(number))
    if here is not None and value is None:
        raise RuntimeError(f"{name!r} was not loaded yet, and so its hashes are not known")
    if here is None or value is None:
        return False
    has_data = bool(catalog.data_sizes[number])
    if has_data or not isinstance(here, torch.Tensor) or not here.is_meta:
        here = plain_tensor(catalog.names[number], here, "verified")
    if here.shape != value.shape or here.dtype != values.stored_dtype(number):
        return False
    if has_data:
        return matches(number, here)
    # The file has no data of a meta tensor, which loads as zeros.
    return here.is_meta or not (copy_bytes(here) or b"").strip(b"\0")
