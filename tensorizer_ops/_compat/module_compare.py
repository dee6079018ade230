"""Compares a module with the tensors that were loaded from a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tensorizer_ops._base.memory import copy_bytes, identity
from tensorizer_ops._base.savable import plain_tensor
from tensorizer_ops._base.states import tensors_of, trusted_state
from tensorizer_ops._compat.catalog import Catalog
from tensorizer_ops._compat.values import Values


def compare_module(
    module: torch.nn.Module, catalog: Catalog, values: Values
) -> list[tuple[Any, bool]]:
    """Return the name of every tensor, and whether the module's tensor has the saved hashes.

    If the file must be signed, tensors of the module that it lacks are listed, too.

    Raises:
        RuntimeError: a tensor was not loaded yet.
        ValueError: a tensor of the module has no values. If the file must be signed also: it may
            have more than its elements, or the ``state_dict()`` has others than the module.
    """
    stored = {name for i in catalog.kept for name in (catalog.names[i], catalog.clean_name(i))}
    tensors = (trusted_state if values.must_be_signed else tensors_of)(module, stored)
    with values.comparing() as matches:
        results = [
            (catalog.public_name(i), _is_same(tensors, i, catalog, values, matches))
            for i in catalog.kept
        ]
    if values.must_be_signed:
        results += [(name, False) for name in _not_in_file(tensors, catalog)]
    return results


def _not_in_file(tensors: dict[str, torch.Tensor], catalog: Catalog) -> Iterator[str]:
    """Yield the names of tensors of which the file has none, nor one that is tied to it."""
    known = {_name_in(tensors, number, catalog) for number in range(len(catalog.names))}
    others = {n: each for n, each in tensors.items() if isinstance(each, torch.Tensor)}
    seen = {identity(others.pop(name)) for name in known & others.keys()}
    for name, tensor in others.items():
        if identity(tensor) not in seen:
            yield name


def _name_in(tensors: dict[str, torch.Tensor], number: int, catalog: Catalog) -> str:
    name = catalog.names[number]
    return name if name in tensors else catalog.clean_name(number)


def _is_same(
    tensors: dict[str, torch.Tensor],
    number: int,
    catalog: Catalog,
    values: Values,
    matches: Callable[[int, torch.Tensor], bool],
) -> bool:
    value, name = values.loaded(number), catalog.public_name(number)
    here = tensors.get(_name_in(tensors, number, catalog))
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
