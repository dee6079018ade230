"""Loads and saves of one model by many processes, the ranks of a ``torch.distributed`` group."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import check_names, checked
from tensorizer_ops._base.devices import first_use, named_device
from tensorizer_ops._base.file_objects import label
from tensorizer_ops._base.options import (
    Metadata,
    Options,
    SecretOptions,
    Verify,
    as_text,
    memory_ceiling,
    texts_of,
)
from tensorizer_ops._base.savable import as_dict, plain_tensors, refuse_other_metadata
from tensorizer_ops._base.targets import Target, to_uri
from tensorizer_ops._distributed.boxes import local_shard
from tensorizer_ops._distributed.gather import Shared, gather, load_ranges, need_only
from tensorizer_ops._distributed.host_memory import HostMemory
from tensorizer_ops._distributed.made import Fused, Stacked
from tensorizer_ops._distributed.meshes import device_of, given_group
from tensorizer_ops._distributed.model import Model
from tensorizer_ops._distributed.peers import Peers
from tensorizer_ops._distributed.placed import Placed, Stored
from tensorizer_ops._distributed.plan import Plan, resolve
from tensorizer_ops._distributed.save import save_shared
from tensorizer_ops._distributed.sharded import load_shards
from tensorizer_ops._distributed.shares import divide
from tensorizer_ops._front.load_save import load_from, save as save_tensors

__all__ = ["Fused", "Stacked", "load", "save"]


def load(
    uri: Target,
    group: dist.ProcessGroup | DeviceMesh | None = None,
    plan: Plan | None = None,
    *,
    names: Sequence[str] | None = None,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    verify: Verify = "none",
    threads: int = 0,
    options: Options | None = None,
) -> dict[str, torch.Tensor]:
    """Load the same tensors on every rank, and read every byte of them once in all.

    All ranks of the group call this with the same arguments; ``device`` may differ. Each reads its
    share of the bytes, and sends it to the others while reading goes on. Ranks on one host that
    load to the CPU send nothing: they share memory, or the pages of a local file. Writing to a
    tensor never changes that of another rank.

    Shares are ranges of bytes, so that one large tensor is shared, too. They are whole tensors if
    the file is verified and has no digests of chunks (``hashes="chunked"``).

    With a mesh and a plan, tensors become DTensors, and every rank reads the bytes of its shards.

    Args:
        uri: as for :func:`tensorizer_ops.load`, but no file object: every rank opens it.
        group: the ranks; all ranks by default. Without ``torch.distributed`` this is a plain load.
            A mesh stands for its ranks.
        plan: which tensors are put on the mesh, and how: placements by name, a plan of
            ``parallelize_module``, or a module that torch has distributed
            (``docs/guides/distributed.md``). All others are plain tensors.
        names, device, dtype, verify, options: as for :func:`tensorizer_ops.load`.
        threads: how many threads each rank computes with; 0 divides the CPUs among the ranks of a
            host.

    Returns:
        What :func:`tensorizer_ops.load` returns on one process; DTensors for what is on the mesh.

    Raises:
        ConnectionError: another rank has ended, or the connection to it.
        Exception: what :func:`tensorizer_ops.load` raises; if one rank fails, all of them raise its
            error within seconds. After a file that cannot be read, the group can still be used.
    """
    alone = group is None and not (dist.is_available() and dist.is_initialized())
    mesh = group if isinstance(group, DeviceMesh) else None
    # Also for wrong arguments, so that the other ranks learn of them.
    with nullcontext() if alone else Peers(given_group(group), "distributed.load") as peers:
        return _load(
            uri,
            peers=peers,
            mesh=mesh,
            plan=plan,
            names=names,
            device=device,
            dtype=dtype,
            verify=verify,
            threads=threads,
            options=options,
        )


def save(
    uri: Target,
    tensors: Mapping[str, torch.Tensor],
    group: dist.ProcessGroup | DeviceMesh | None = None,
    *,
    hashes: Literal["chunked", "crc32", "none"] = "chunked",
    options: Options | None = None,
    metadata: Metadata | None = None,
) -> None:
    """Save tensors of which each rank has a part, into one file that all ranks write.

    The file is the same as if one process had saved the whole tensors with
    :func:`tensorizer_ops.save`. No rank gathers a tensor: each writes sections of the file of which
    it has much, and the rest of these is sent to it piece by piece. The file appears under its name
    once it is completely written, and all ranks return then. If one of them fails, a previous file
    of that name stays unchanged.

    All ranks of the group call this with the same arguments, except the tensors.

    Args:
        uri: a path on a file system that all ranks share, or an object in S3, which each rank
            uploads parts of.
        tensors: the tensors by name: DTensors, each rank with its shard, or plain tensors. Of what
            several ranks have, the bytes of one of them are saved; they are not compared. A rank
            need not have all tensors: the file has those of all ranks.
        group: the ranks; all ranks by default. A mesh stands for its ranks. Without
            ``torch.distributed`` one process saves its tensors.
        hashes: which hashes to write with every tensor. SHA-256 of whole tensors is computed in
            order, and so by one process only.
        options: as for :func:`tensorizer_ops.save`, without those that encrypt, ``share`` and
            ``max_shard_size``.
        metadata: texts to store with the tensors.

    Raises:
        ConnectionError: another rank has ended, or the connection to it.
        ValueError: a tensor cannot be stored, has ``Partial`` placements, or has another type,
            shape or cut on another rank; another rank has other metadata; or the target cannot be
            written by several processes.
        Exception: what :func:`tensorizer_ops.save` raises; if one rank fails, all of them raise its
            error within seconds.
    """
    alone = group is None and not (dist.is_available() and dist.is_initialized())
    with nullcontext() if alone else Peers(given_group(group), "distributed.save") as peers:
        _save(uri, tensors, peers=peers, hashes=hashes, options=options, metadata=metadata)


@checked
def _save(
    uri: Target,
    tensors: Mapping[str, torch.Tensor],
    *,
    peers: Peers | None,
    hashes: Literal["chunked", "crc32", "none"],
    options: Options | None,
    metadata: Metadata | None,
) -> None:
    given = as_dict(tensors)
    named = dict(zip(given, plain_tensors(given, given.values(), shards=True), strict=True))
    if peers is None:
        for name, tensor in named.items():
            local_shard(name, tensor)  # raises for what several ranks could not save
        save_tensors(uri, named, hashes=hashes, options=options, metadata=metadata)
        return
    texts = texts_of(metadata)
    refuse_other_metadata(texts)
    save_shared(to_uri(uri), named, peers, hashes, SecretOptions(as_text(options)), texts)


@checked
def _load(
    uri: Target,
    *,
    peers: Peers | None,
    mesh: DeviceMesh | None,
    plan: Plan | None,
    names: Sequence[str] | None,
    device: torch.device | str | int | None,
    dtype: torch.dtype | None,
    verify: Verify,
    threads: int,
    options: Options | None,
) -> dict[str, torch.Tensor]:
    wanted = None if names is None else list(names)
    check_names("names", wanted or ())
    if plan is not None and mesh is None:
        raise errors.InvalidArgument("plan needs a DeviceMesh, in place of the group")
    if mesh is not None:
        where = device_of(mesh, device)
    else:
        where = torch.get_default_device() if device is None else named_device(device)
    given = as_text(options)
    first_use(where)
    reader = torch.classes.tensorizer.Reader(to_uri(uri), given)
    if peers is None:
        return load_from(reader, wanted, None, where, dtype, verify, False, threads)
    placed = {} if plan is None or mesh is None else _placed(reader, wanted, mesh, plan)
    shards = {name: one for name, one in placed.items() if one and not one.is_whole}
    whole = wanted if plan is None else [name for name in placed if name not in shards]
    on_mesh = [f"{name} {one and (one.shape, one.placements)}" for name, one in placed.items()]
    model = Model.read(reader, whole, dtype, verify, on_mesh)
    can_map = torch.classes.tensorizer._Internals(reader).can_map()
    maps = can_map and dtype is None and "digest" not in given
    devices: list[str]
    same, devices, mapped = peers.agree([model.fingerprint, where.type, maps], _outcome)
    if same != peers.size:
        raise errors.InvalidArgument(
            f"rank {same} loads something else from {label(uri)} than rank 0: all ranks must "
            "load the same version of one file with the same arguments",
        )
    if "meta" in devices and len(devices) > 1:
        raise errors.InvalidArgument(
            "device is meta on some ranks only, which then take no part in the load"
        )
    at_once = threads or max(1, len(os.sched_getaffinity(0)) // peers.beside)
    loaded: dict[str, torch.Tensor] = {}
    if shards:
        loaded = peers.run(
            lambda: load_shards(reader, shards, where, dtype, verify, at_once), reader.cancel
        )
    if devices == ["meta"]:
        loaded |= load_from(reader, whole, None, where, dtype, "none", False, at_once)
    else:
        on_cpu = devices == ["cpu"]
        loaded |= _load_whole(reader, model, peers, where, on_cpu, mapped, verify, at_once, given)
    if plan is None:
        return loaded
    return {
        name: loaded[name] if one is None else one.assembled(loaded[name])
        for name, one in placed.items()
    }


def _placed(
    reader: Any, names: Sequence[str] | None, mesh: DeviceMesh, plan: Plan
) -> dict[str, Placed | None]:
    """Return which tensors to load, and where those on the mesh are."""
    internals = torch.classes.tensorizer._Internals(reader)
    stored = {
        name: Stored(reader.shape(name), getattr(torch, internals.type_name(name)))
        for name in reader.names()
    }
    placed = resolve(plan, mesh, stored)
    if names is None:
        return placed
    for name in names:
        if name not in placed:
            reader.shape(name)  # raises for one that is not there
            raise errors.NoSuchTensor(f"plan makes another tensor of {name!r}, which is in names")
    return {name: placed[name] for name in names}


def _load_whole(
    reader: Any,
    model: Model,
    peers: Peers,
    device: torch.device,
    on_cpu: bool,
    mapped: bool,
    verify: str,
    threads: int,
    options: Mapping[str, str],
) -> dict[str, torch.Tensor]:
    """Load tensors that every rank has all of."""
    if peers.processes and on_cpu:
        if mapped:
            if verify != "none":
                nothing = model.new_tensors(torch.device("meta"))
                _load_share(reader, model, nothing, peers, verify, threads)
            names = list(model.wanted)
            return load_from(reader, names, None, device, None, "none", False, threads)
        with closing(HostMemory(model.types, model.shapes)) as memory:
            if memory.meet(peers):
                _load_share(reader, model, memory.shared(), peers, verify, threads)
                return model.named(memory.private())
    outputs = model.new_tensors(device)
    shared = Shared(model.names, model.extents, outputs)
    gather(reader, shared, peers, verify, threads, memory_ceiling(options))
    return model.named(outputs)


def _outcome(everyone: list[Any]) -> list[Any]:
    """Return how many ranks load the same as rank 0, the kinds of devices, and if all can map."""
    fingerprints, devices, maps = zip(*everyone, strict=True)
    same = [fingerprint == fingerprints[0] for fingerprint in fingerprints]
    return [[*same, False].index(False), sorted(set(devices)), all(maps)]


def _load_share(
    reader: Any,
    model: Model,
    outputs: list[torch.Tensor],
    peers: Peers,
    verify: str,
    threads: int,
) -> None:
    """Load this rank's share into the outputs; verify it only if they are on the meta device."""
    shared = Shared(model.names, model.extents, outputs)
    share = divide(model.extents, peers.size)[peers.rank]
    need_only(reader, shared, share)
    peers.run(lambda: load_ranges(reader, shared, share, verify, threads), reader.cancel)
