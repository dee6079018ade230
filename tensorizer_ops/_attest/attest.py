"""Comparing the weights that a program has in memory with a file of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from tensorizer_ops import errors
from tensorizer_ops._attest.attributes import Attributes
from tensorizer_ops._attest.compared import (
    Attestation,
    Compared,
    Comparing,
    Difference,
    usable,
    why_coarse,
)
from tensorizer_ops._attest.kept import Kept
from tensorizer_ops._attest.watch import Watch, unlisted_in
from tensorizer_ops._base.arguments import checked, wrong
from tensorizer_ops._base.memory import identity
from tensorizer_ops._base.options import Options
from tensorizer_ops._base.savable import (
    is_distributed,
    plain_tensors,
    refuse_without_memory,
)
from tensorizer_ops._base.states import doubts, state_of
from tensorizer_ops._base.targets import Source
from tensorizer_ops._front.reader import Reader
from tensorizer_ops._front.tied import Tied
from tensorizer_ops._front.weight import Index, Weight, stored_in

# Fills a model with named tensors. What it returns does not matter.
LoadWeights = Callable[[Iterator[tuple[str, torch.Tensor]]], object]


@checked
def attest(
    model: torch.nn.Module | Mapping[str, torch.Tensor],
    uri: Source,
    *,
    load_weights: LoadWeights | None = None,
    options: Options | None = None,
) -> Attestation:
    """Compare the weights that a program has in memory with a file, and change nothing.

    Where the file has digests of chunks, tensors and rows of them are compared with these where
    they are, and of the file only the digests are read. All else is compared with what is loaded
    from the file, verified, a few tensors at a time.

    It finds damage and mistakes, not an attacker inside the process. Tensors that a
    ``state_dict()`` leaves out are compared if the file has their names. Not compared are those
    that it makes anew, or shows only a part of, and subclasses that change what torch does with
    them, or have something else, such as a scale. ``DTensor`` and the parameters of vLLM are
    compared.

    With ``load_weights``, no parameter or buffer is written, and those that the method replaces are
    put back, as are other attributes of modules. It must write with torch, and on the thread that
    calls it: other writes change the model, and are found in ``not_compared``. There is also what
    it makes not only of the tensors that it gets, but of others, such as a scale in an attribute,
    NumPy arrays, or what other ranks send, or with operations that loaders rarely need, such as
    convolutions, and what fills uninitialized memory unseen. Not followed are numbers, and writes
    to what torch has filled by other means than its operations, or on other threads, such as by
    :func:`load_into` and compiled packages that write to their arguments: weights of the model that
    it passes on so can count as those of the file. Nor are custom operations that use more than
    their tensor arguments, two storages over one memory, and what runs while modes of torch are
    switched off. A buffer that it does not write is left out, unless the file has its name; so are
    buffers that ``state_dict()`` leaves out and the file lacks, unless it writes something else to
    them than they have.

    Args:
        model: a module, or a dict of tensors. Of a ``DTensor``, the part of this rank is compared.
            Real floating-point tensors may have another type than in the file, which is cast, but
            none of 8 bits or fewer, which loses most of the values: these are not compared. With
            ``load_weights``, the same holds of integers that are cast to smaller ones.
        uri: as for :func:`load`.
        load_weights: what fills the module with tensors of other names or shapes, such as the
            method ``load_weights`` of a model of vLLM. It gets the tensors of the file, and what it
            would write is compared instead: what is written last. If the module ties tensors that
            the file has as two, these must be equal there. What only the file has is not listed as
            missing.
        options: as for :func:`load`. With ``trust``, the file must be signed.

    Raises:
        tensorizer_ops.errors.HashMismatch: the file itself is damaged.
        ValueError: a tensor in memory cannot be compared, such as a sparse or quantized one; with
            ``load_weights``, also a ``DTensor``, and other subclasses that decide what operations
            do with them; a module gets another tensor by a name than its ``state_dict()`` has.
        FileNotFoundError, PermissionError, OSError: the file cannot be read.
    """
    with Reader(uri, verify="all", options=options) as reader:
        if load_weights is None:
            return _attest_names(model, reader)
        if not isinstance(model, torch.nn.Module):
            raise errors.InvalidArgument("model= must be a module if load_weights= is given")
        if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
            raise errors.InvalidArgument(
                "model= has a ScriptModule, which load_weights= cannot fill: give none"
            )
        state, sizes = state_of(model, reader), sizes_in(reader)
        others = unlisted_in(state, model), Attributes(model, state), doubts(model, state)
        watch = Watch(state, *others, sizes, dtypes_in(reader), model.parameters())
        tied = Tied(model)
        with Kept(model, watch.attestation), watch:
            load_weights(tied.seeing(weights_of(reader)))
        tied.tell(watch.attestation.different, watch.used)
        return watch.attestation


def _attest_names(
    model: torch.nn.Module | Mapping[str, torch.Tensor], reader: Reader
) -> Attestation:
    """Compare each tensor with the one of its name in the file."""
    found = Attestation([], {}, {}, [])
    if isinstance(model, torch.nn.Module):
        given = usable(state_of(model, reader), found)
    elif isinstance(model, Mapping):
        given = dict(model)
    else:
        raise wrong("model", model, "a module or a dict of tensors")
    unclear = doubts(model, given)
    found.not_compared |= unclear
    seen = {identity(given[name]) for name in unclear if name in reader}
    known = {name: tensor for name, tensor in given.items() if name not in found.not_compared}
    plain = plain_tensors(known, known.values(), shards=True, done="compared")
    tensors = dict(zip(known, plain, strict=True))
    comparisons: dict[str, tuple[torch.Tensor, Callable[[], Difference | None]]] = {}
    with Comparing() as comparing:
        for stored in stored_in(reader, [name for name in reader if name in tensors], Compared):
            name, tensor = stored.name, tensors.pop(stored.name)
            seen.add(identity(given[name]))
            if tensor.is_meta:
                found.not_compared[name] = "it is on the meta device, and has no values"
                continue
            if not is_distributed(tensor):
                refuse_without_memory(name, tensor, "compared")
            if why := _other_kind(stored, tensor):
                found.different[name] = why
                continue
            if why := why_coarse(tensor.dtype, [stored.dtype]):
                found.not_compared[name] = why
                continue
            own, index = _own_part(stored, tensor)
            comparisons[name] = own, comparing.difference(stored, index, own)
        for name, (own, result) in comparisons.items():
            if difference := result():
                found.different[name] = difference.text(own.shape, "the file")
            else:
                found.compared.append(name)
    for name in tensors:
        if identity(given[name]) not in seen:
            found.not_compared[name] = "the file has no tensor of this name"
    present = given.keys() | found.not_compared
    found.missing = [name for name in reader if name not in present]
    return found


def _other_kind(stored: Compared, tensor: torch.Tensor) -> str | None:
    same = tensor.dtype == stored.dtype
    if tuple(tensor.shape) == stored.shape and (
        same or (tensor.dtype.is_floating_point and stored.dtype.is_floating_point)
    ):
        return None
    return (
        f"it is {tensor.dtype} {list(tensor.shape)}, and {stored.dtype} {list(stored.shape)} in "
        "the file"
    )


def _own_part(stored: Compared, tensor: torch.Tensor) -> tuple[torch.Tensor, Index]:
    """Return what this process has of a tensor in memory, and which part that is."""
    if not is_distributed(tensor):
        return tensor, stored.everything
    from tensorizer_ops._distributed.boxes import local_shard  # which is slow to import

    local, box = local_shard(stored.name, tensor, "compared")
    return local, tuple(range(b, b + n) for b, n in zip(box.starts, box.lengths, strict=True))


def sizes_in(reader: Reader) -> dict[str, int]:
    """Return how many elements the tensors of a file have."""
    return {name: reader.shape(name).numel() for name in reader}


def dtypes_in(*readers: Reader) -> list[torch.dtype]:
    """Return the types of the tensors of files, each once."""
    return list(dict.fromkeys(reader.dtype(name) for reader in readers for name in reader))


def weights_of(reader: Reader) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a file as loaders of weights take them."""
    for stored in stored_in(reader, list(reader), Compared):
        yield stored.name, Weight(stored)
