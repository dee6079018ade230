"""Saves the tensors of several ranks into one file that all of them write."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.file_objects import label
from tensorizer_ops._base.savable import held
from tensorizer_ops._distributed.boxes import Box, LocalBytes, in_bytes, local_shard, merged
from tensorizer_ops._distributed.exchange import Exchange, assigned
from tensorizer_ops._distributed.peers import Peers


def save_shared(
    uri: str,
    tensors: Mapping[str, torch.Tensor],
    peers: Peers,
    hashes: str,
    options: Mapping[str, str],
    metadata: Mapping[str, str] | None,
) -> None:
    """Save what all ranks have, each a part. All of them return when the file is there."""
    shards = {name: [local_shard(name, tensor)] for name, tensor in tensors.items()}
    told = [
        [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), *shards[name][0][1]]
        for name, tensor in tensors.items()
    ]
    whole = agreed(told, peers, metadata)
    shared = write_file(uri, whole, shards, peers, hashes, options, metadata)
    if peers.rank == 0:
        peers.run(shared.finish, shared.cancel)
    peers.agree(None, bool)  # the file is there
    if peers.rank != 0:
        shared.leave()


def agreed(announced: list[Any], peers: Peers, metadata: Mapping[str, str] | None) -> list[Any]:
    """Return the tensors of all ranks as :func:`merged` does."""
    whole: list[Any] = peers.agree([announced, _digests(metadata)], _whole)
    return whole


def write_file(
    uri: str,
    whole: Sequence[Any],
    shards: Mapping[str, Sequence[tuple[torch.Tensor, Box]]],
    peers: Peers,
    hashes: str,
    options: Mapping[str, str],
    metadata: Mapping[str, str] | None,
    replaces: str = "",
) -> Any:
    """Return the save of a file that all ranks have written and that has not appeared yet.

    Args:
        uri, hashes, options, metadata: as for :func:`tensorizer_ops.save`.
        whole: the tensors of the file, as :func:`agreed` returns them.
        shards: what this rank has of tensors, of those of other files too.
        peers: the ranks. They give up the save in the end, unless it is finished before.
        replaces: the path of the file whose access rights this one gets, on rank 0.
    """
    names = [each[0] for each in whole]
    likes = [
        torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        for _, dtype, shape, _ in whole
    ]
    texts = None if metadata is None else dict(metadata)
    shared = torch.classes.tensorizer._SharedSave(uri, names, likes, hashes, options, texts)
    # In the end, because a rank whose upload has ended must learn why.
    peers.cleanup.callback(shared.abort)
    _start(shared, uri, peers, replaces)
    saved = {
        name: in_bytes(like.shape, like.itemsize, holders)
        for like, (name, _, _, holders) in zip(likes, whole, strict=True)
    }
    order = shared.names()
    placed = [saved[name] for name in order]
    mine = [(number, one) for number, name in enumerate(order) for one in shards.get(name, ())]
    own = held([order[number] for number, _ in mine], [local for _, (local, _) in mine])
    local: dict[int, list[tuple[torch.Tensor, Box]]] = {}
    for (number, (_, box)), tensor in zip(mine, peers.cleanup.enter_context(own), strict=True):
        local.setdefault(number, []).append((tensor, box))
    in_memory = {number: LocalBytes(parts) for number, parts in local.items()}
    sections = assigned(shared, placed, peers.size)
    Exchange(peers, shared, placed, in_memory, sections).run()
    handed: list[str] = []
    given = peers.run(shared.hand_in, shared.cancel)
    peers.agree(given, handed.extend)  # which only rank 0 needs
    for text in handed[1:]:
        shared.take_in(text)
    return shared


def _digests(metadata: Mapping[str, str] | None) -> dict[str, str]:
    texts = (metadata or {}).items()
    return {key: hashlib.sha256(text.encode()).hexdigest() for key, text in texts}


def _whole(everyone: Sequence[Any]) -> list[Any]:
    """Return the tensors of all ranks, which must have the same metadata."""
    first = everyone[0][1]
    for rank, (_, texts) in enumerate(everyone):
        if texts != first:
            key, _ = min(texts.items() ^ first.items())
            raise errors.InvalidArgument(
                f"metadata[{key!r}] is another text on rank {rank} than on rank 0, or on one of "
                "them only: all ranks must save with the same arguments"
            )
    return merged([announced for announced, _ in everyone])


def _start(shared: Any, uri: str, peers: Peers, replaces: str) -> None:
    """Open the target on rank 0, and then on all others."""
    first = peers.rank == 0
    opened = shared.start(None, replaces) if first else ""
    joined = peers.agree(opened, lambda given: given[0])
    if not first:
        shared.start(joined, "")
    # A file system that all share may have another path on another host.
    name = label(uri).rpartition("/")[2]
    plans: list[str] = peers.agree(f"{name} {shared.plan()}", list)
    same = [*(plan == plans[0] for plan in plans), False].index(False)
    if same < peers.size:
        raise errors.InvalidArgument(
            f"rank {same} saves another file to {label(uri)} than rank 0: all ranks must save with "
            "the same arguments"
        )
