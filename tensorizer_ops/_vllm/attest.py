"""Comparing the weights of a running vLLM with files of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import torch
from torch.utils._pytree import tree_leaves

from tensorizer_ops import errors
from tensorizer_ops._attest.attest import dtypes_in, sizes_in, weights_of
from tensorizer_ops._attest.attributes import Attributes
from tensorizer_ops._attest.compared import Attestation
from tensorizer_ops._attest.kept import Kept
from tensorizer_ops._attest.watch import Watch, unlisted_in
from tensorizer_ops._base.file_objects import label
from tensorizer_ops._base.states import doubts, full_name, registered_in, tensors_of
from tensorizer_ops._front.reader import Reader
from tensorizer_ops._front.serving import files_of, other_models, signed_contents
from tensorizer_ops._front.tied import Tied
from tensorizer_ops._vllm.layers import Reshaped, hidden_copy, is_made_over
from tensorizer_ops._vllm.ranks import all_succeed, from_all


def attest_model(
    model: torch.nn.Module, uri: str, options: Mapping[str, str], engine: int
) -> Attestation:
    """Compare the weights of a model with files, and change nothing.

    All ranks of an engine call this together, and none is equal unless all are. If it fails on one,
    or if they have compared with several signed models, the last one raises, and the others compare
    nothing. vLLM shows only what the first ``engine``, 0, returns: others raise if they differ.
    """
    found: list[Attestation] = []

    def compared() -> list[str]:
        attestation, contents = _attested(model, uri, options)
        found.append(attestation)
        return contents if "trust" in options else []

    def shown() -> None:
        if engine and not found[0].equal:
            raise errors.HashMismatch(
                f"engine {engine} has other weights than {label(uri)}, or some that cannot be "
                f"compared: {found[0].different or found[0].not_compared}"[:1000]
            )

    if not all_succeed(compared, other_models(uri)):
        return Attestation([], {}, {}, [])
    others = [rank for rank, equal in enumerate(from_all(found[0].equal)) if not equal]
    if found[0].equal:
        found[0].not_compared |= {f"rank {rank}": "its answer is not equal" for rank in others}
    return found[0] if all_succeed(shown) else Attestation([], {}, {}, [])


def _attested(
    model: torch.nn.Module, uri: str, options: Mapping[str, str]
) -> tuple[Attestation, list[str]]:
    """Compare, and return also what :func:`signed_contents` does of the files."""
    hidden: dict[str, str] = {}
    replaced = Attestation([], {}, {}, [])
    with ExitStack() as stack:
        stack.enter_context(Kept(model, replaced))
        reshaped = stack.enter_context(Reshaped())
        files, loads = files_of(uri, options)
        readers = [
            stack.enter_context(Reader(place, verify="all", options=loads)) for place in files
        ]
        sizes = {name: size for reader in readers for name, size in sizes_in(reader).items()}
        tensors = tensors_of(model, sizes)
        unlisted, unclear = unlisted_in(tensors, model), doubts(model, tensors)

        tied = Tied(model)
        for prefix, module in list(model.named_modules()):
            leaves = [leaf for leaf, _ in module.named_parameters(recurse=False)]
            own = [full_name(prefix, leaf) for leaf in leaves]
            if why := hidden_copy(module):
                hidden |= dict.fromkeys(own or [prefix], why)
                reshaped.ignore(module)
            elif own and is_made_over(module):
                reshaped.make_anew(module)
        apart = dict.fromkeys(_apart(model), "vLLM has weights there that are not the model's own")
        watched = {name: tensor for name, tensor in tensors.items() if name not in hidden}
        others = {name: each for name, each in unlisted.items() if name not in hidden}
        attributes = Attributes(model, tensors)
        stored = sizes, dtypes_in(*readers)
        watch = Watch(watched, others, attributes, unclear, *stored, model.parameters())
        contents = signed_contents(readers)
        with watch:
            every = itertools.chain.from_iterable(map(weights_of, readers))
            model.load_weights(tied.seeing(every))  # type: ignore[operator]
            reshaped.finish()
        tied.tell(watch.attestation.different, watch.used)
    found = watch.attestation
    found.not_compared |= hidden | apart | replaced.not_compared
    found.compared = [name for name in found.compared if name not in found.not_compared]
    return found, contents


def _apart(model: torch.nn.Module) -> Iterator[str]:
    """Yield the attributes with modules that no list of a model's tensors has, such as in a dict.

    So a model that makes embeddings has the layers that come last.
    """
    own = {id(tensor) for tensor in registered_in(model).values()}
    for prefix, module in model.named_modules():
        for leaf, value in vars(module).items():
            modules = (each for each in tree_leaves(value) if isinstance(each, torch.nn.Module))
            if any(id(t) not in own for each in modules for t in registered_in(each).values()):
                yield full_name(prefix, leaf)
