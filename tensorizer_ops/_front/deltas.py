"""Deltas: files that hold what changed between two versions of a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import check_names, checked, wrong
from tensorizer_ops._base.options import Hashes, Options, as_text
from tensorizer_ops._base.progress import Progress, reported
from tensorizer_ops._base.savable import as_dict, plain_tensors
from tensorizer_ops._base.targets import Target, to_uri


@checked
def delta(
    base: Target,
    new: Target,
    target: Target,
    *,
    hashes: Hashes = "chunked",
    threads: int = 0,
    base_options: Options | None = None,
    new_options: Options | None = None,
    target_options: Options | None = None,
    progress: Progress | None = None,
) -> None:
    """Write what turns one version of a model into another, for :func:`apply`.

    A step of training changes few elements, by little: the delta of one is 1 to 5 % of the model.
    It is a file of tensors itself, with the metadata of ``new``. Both models are read in whole, and
    all that they say about their data is checked.

    Args:
        base: the older model, as for :func:`load`.
        new: the newer model. Tensors that the base has with another type or shape, or not at all,
            are in the delta in whole.
        target: the file to write, as for :func:`save`.
        hashes: which hashes to write.
        threads: how many threads compute; 0 means one for every CPU that the process may use.
        base_options, new_options, target_options: options as for loads and for saves.
        progress: called with the bytes moved so far and the bytes to move in all.

    Raises:
        ValueError: one of the models is a delta itself, or a pipe.
    """
    older = torch.classes.tensorizer.Reader(to_uri(base), as_text(base_options))
    newer = torch.classes.tensorizer.Reader(to_uri(new), as_text(new_options))
    internals = torch.classes.tensorizer._Internals(older)
    with reported(older, progress):
        internals.make_delta(newer, to_uri(target), hashes, threads, as_text(target_options))


@checked
def apply(
    delta: Target,
    base: Target | torch.nn.Module | Mapping[str, torch.Tensor],
    target: Target | None = None,
    *,
    hashes: Hashes | None = None,
    threads: int = 0,
    delta_options: Options | None = None,
    base_options: Options | None = None,
    target_options: Options | None = None,
    progress: Progress | None = None,
) -> bool:
    """Make the new version of a model from the old one and a delta.

    The base is compared with what the delta was made from, and the result with what it should be.
    A file appears at the target, or replaces the base, when it is complete and correct. Tensors in
    memory, on any device, are changed in place: none before all of them were compared, and each
    block of 1 MiB after its new content was. If that fails between, the error says that the tensors
    are between two models.

    Args:
        delta: what :func:`delta` has written.
        base: the older model: a file, or tensors in memory, which are a dict or a module whose
            tensors have the names of its ``state_dict()``. Of these the new model must have the
            same names, types and shapes.
        target: the file to write, as for :func:`save`; by default the new model replaces the file
            of the base, in its format and with its hashes.
        hashes: which hashes to write; by default ``"chunked"``, or those of the base that is
            replaced.
        threads: how many threads compute; 0 means one for every CPU that the process may use.
        delta_options, base_options, target_options: options as for loads and for saves.
        progress: called with the bytes moved so far and the bytes to move in all.

    Returns:
        Whether something has changed: False if the base is the new model already, and there is no
        target.

    Raises:
        ValueError: the base is another model, or ``delta`` is no delta.
        tensorizer_ops.errors.InvalidFormat: the delta is damaged.
    """
    reader = torch.classes.tensorizer.Reader(to_uri(delta), as_text(delta_options))
    how = (hashes, threads, base_options, target_options, progress)
    return apply_opened(reader, base, target, *how)


def apply_opened(
    reader: Any,
    base: Target | torch.nn.Module | Mapping[str, torch.Tensor],
    target: Target | None,
    hashes: Hashes | None = None,
    threads: int = 0,
    base_options: Options | None = None,
    target_options: Options | None = None,
    progress: Progress | None = None,
) -> bool:
    """Do what :func:`apply` does with a delta that is open."""
    if isinstance(base, (torch.nn.Module, Mapping)):
        if target is not None or hashes is not None or base_options or target_options:
            raise errors.InvalidArgument(
                "tensors in memory are changed in place: target, hashes, base_options and "
                "target_options are for files"
            )
        return _apply_in_memory(reader, base, threads, progress)
    if not isinstance(base, (str, bytes, os.PathLike)):
        raise wrong("base", base, "a path, a URI, a module or a dict of tensors")
    older = torch.classes.tensorizer.Reader(to_uri(base), as_text(base_options))
    place = None if target is None else to_uri(target)
    internals = torch.classes.tensorizer._Internals(reader)
    with reported(reader, progress):
        changed: bool = internals.apply(older, place, hashes, threads, as_text(target_options))
    return changed


def _apply_in_memory(
    reader: Any,
    base: torch.nn.Module | Mapping[str, torch.Tensor],
    threads: int,
    progress: Progress | None,
) -> bool:
    if isinstance(base, torch.nn.Module):
        base = base.state_dict(keep_vars=True)
    named = as_dict(base)
    check_names("base", named)
    for name, tensor in named.items():
        if not isinstance(tensor, torch.Tensor):
            raise wrong(f"base[{name!r}]", tensor, "a tensor")
    plain = plain_tensors(named, named.values(), done="changed")
    internals = torch.classes.tensorizer._Internals(reader)
    with reported(reader, progress), torch._C.DisableTorchFunctionSubclass():
        changed: bool = internals.apply_in_memory(list(named), plain, threads)
    return changed
