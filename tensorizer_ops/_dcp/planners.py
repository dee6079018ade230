"""Planners that save values which are no tensors without pickle."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint._traverse import traverse_state_dict
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem, WriteItem, WriteItemType

from tensorizer_ops import errors
from tensorizer_ops._base.nested import DAMAGE, damage, flattened, rebuilt
from tensorizer_ops._base.savable import fillable, local_tensor
from tensorizer_ops._dcp.paths import own_key, saved_paths

# No pickle and no zip file of torch.save begins so.
_BEGIN = b"tensorizer_ops JSON\n"


class JsonSavePlanner(DefaultSavePlanner):
    """Torch's default planner, but what is no tensor becomes JSON, and nothing is pickled.

    It takes the values that :func:`save` takes. Other values raise ``TypeError``, and
    the last checkpoint stays.
    """

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Receive the state."""
        _check(state_dict, local_tensor)
        super().set_up_planner(state_dict, storage_meta, is_coordinator)
        if self.flatten_state_dict:
            self.mappings = saved_paths(state_dict, self.mappings)

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        """Return a tensor as it is, and the bytes of any other value."""
        if write_item.type != WriteItemType.BYTE_IO:
            return super().transform_object(write_item, object)
        tensors, text = flattened(object, (write_item.index.fqn,))
        if tensors:
            raise TypeError(
                f"state[{write_item.index.fqn!r}] is {type(object).__name__} with tensors in it: "
                "use a dict or a list"
            )
        return io.BytesIO(_BEGIN + text.encode())


class JsonLoadPlanner(DefaultLoadPlanner):
    """Torch's default planner, but no value in the checkpoint can run code.

    Reads what :class:`JsonSavePlanner` has saved, and of values that torch's own planner has
    pickled those that ``torch.load(weights_only=True)`` takes.
    """

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Receive the state."""
        _check(state_dict, fillable)
        super().set_up_planner(state_dict, metadata, is_coordinator)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put a value that is no tensor into the state."""
        name = read_item.dest_index.fqn
        self._put(name, _value(name, value.getvalue()))

    def _put(self, name: str, value: Any) -> None:
        """Put a value into the state, under torch's name for its place."""
        if not self.flatten_state_dict:
            self.state_dict[name] = value
            return
        *parents, last = self.mappings[name]
        inside: Any = self.original_state_dict
        for key in parents:
            inside = inside[own_key(inside, key)]
        inside[own_key(inside, last)] = value


def _check(state: dict[str, Any], check: Callable[[str, torch.Tensor], object]) -> None:
    """Pass the name and the value of every tensor of a state to a function that may raise.

    Torch's planners make no plan for some tensors, and do not say which.
    """

    def visit(path: tuple[str | int, ...], value: Any) -> None:
        if isinstance(value, torch.Tensor) and not isinstance(value, ShardedTensor):
            check(".".join(map(str, path)), value)

    traverse_state_dict(state, visit)


def _value(name: str, data: bytes) -> Any:
    if not data.startswith(_BEGIN):
        try:
            return torch.load(io.BytesIO(data), weights_only=True)
        except Exception:  # whose text advises to run code from the file
            raise errors.InvalidFormat(
                f"state[{name!r}] is damaged, or was pickled and is more than "
                "torch.load(weights_only=True) takes"
            ) from None
    try:
        return rebuilt(data[len(_BEGIN) :].decode(), {})
    except DAMAGE as error:
        raise errors.InvalidFormat(f"state[{name!r}] is damaged: {damage(error)}") from error
