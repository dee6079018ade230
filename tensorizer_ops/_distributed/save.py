"""Saves the tensors of several ranks into one file that all of them write."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.file_objects import label
from tensorizer_ops._base.savable import held
from tensorizer_ops._distributed.boxes import (
    LocalBytes,
    announcement,
    in_bytes,
    local_shard,
    merged,
)
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
    local, boxes = {}, {}
    for name, tensor in tensors.items():
        local[name], boxes[name] = local_shard(name, tensor)
    own = peers.cleanup.enter_context(held(local, local.values()))
    local = dict(zip(local, own, strict=True))
    told = [announcement(tensors, boxes), _digests(metadata)]
    whole: list[Any] = peers.agree(told, _whole)
    names = [each[0] for each in whole]
    likes = [
        torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        for _, dtype, shape, _ in whole
    ]
    texts = None if metadata is None else dict(metadata)
    shared = torch.classes.tensorizer._SharedSave(uri, names, likes, hashes, options, texts)
    # In the end, because a rank whose upload has ended must learn why.
    peers.cleanup.callback(shared.abort)
    _start(shared, uri, peers)
    saved = {
        name: in_bytes(like.shape, like.itemsize, holders)
        for like, (name, _, _, holders) in zip(likes, whole, strict=True)
    }
    order = shared.names()
    placed = [saved[name] for name in order]
    mine = {
        number: LocalBytes(local[name], boxes[name])
        for number, name in enumerate(order)
        if name in local
    }
    sections = assigned(shared, placed, peers.size)
    Exchange(peers, shared, placed, mine, sections).run()
    _finish(shared, peers)


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


def _start(shared: Any, uri: str, peers: Peers) -> None:
    """Open the target on rank 0, and then on all others."""
    first = peers.rank == 0
    opened = shared.start(None) if first else ""
    joined = peers.agree(opened, lambda given: given[0])
    if not first:
        shared.start(joined)
    # A file system that all share may have another path on another host.
    name = label(uri).rpartition("/")[2]
    plans: list[str] = peers.agree(f"{name} {shared.plan()}", list)
    same = [*(plan == plans[0] for plan in plans), False].index(False)
    if same < peers.size:
        raise errors.InvalidArgument(
            f"rank {same} saves another file to {label(uri)} than rank 0: all ranks must save with "
            "the same arguments"
        )


def _finish(shared: Any, peers: Peers) -> None:
    handed: list[str] = []
    own = peers.run(shared.hand_in, shared.cancel)
    peers.agree(own, handed.extend)  # which only rank 0 needs
    if peers.rank == 0:
        for text in handed[1:]:
            shared.take_in(text)
        peers.run(shared.finish, shared.cancel)
    peers.agree(None, bool)  # the file is there
    if peers.rank != 0:
        shared.leave()
