"""A nested state in one file, as a checkpoint that torch's planners can load from."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan

from tensorizer_ops._base.nested import Damaged, naming_damage, rebuilt
from tensorizer_ops._base.options import Verify
from tensorizer_ops._dcp.description import Place, Places
from tensorizer_ops._dcp.planners import JsonLoadPlanner
from tensorizer_ops._dcp.reading import Wanted, fill
from tensorizer_ops._front.reader import Reader


class OneFile:
    """Reads the values of a state that one process has saved. A tensor is one part.

    Args:
        reader: of the file.
        label: what messages call the file.
        text: says where tensors belong.
        verify, threads: as for :func:`tensorizer_ops.load`.
    """

    def __init__(self, reader: Reader, label: str, text: str, verify: Verify, threads: int) -> None:
        self._reader = reader.script_object
        self._label = label
        self._verify = verify
        self._threads = threads
        self._places = Places()
        tensors = {
            name: torch.empty(reader.shape(name), dtype=reader.dtype(name), device="meta")
            for name in reader
        }
        names = {id(tensor): name for name, tensor in tensors.items()}
        self._values = self._flat(text, tensors)
        listed = {id(value) for value in self._values.values()}
        # Torch's planners do not look into tuples.
        hidden = [name for each, name in names.items() if each not in listed]
        if hidden:
            self._values = self._flat(text, tensors | reader.load(hidden, verify=verify))
        stored: dict[str, Any] = {}
        for path, value in self._values.items():
            if id(value) not in names:
                stored[path] = BytesStorageMetadata()
                continue
            dtype = str(value.dtype).removeprefix("torch.")
            place = Place("", names[id(value)], list(value.shape), dtype)
            whole = [([0] * value.dim(), place)]
            stored[path] = self._places.add_tensor(path, value.shape, dtype, whole)
        self.metadata = Metadata(stored)

    def read_data(self, plan: LoadPlan, planner: JsonLoadPlanner) -> None:
        """Fill the tensors of a plan, and replace its other values."""
        wanted = []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner._put(item.dest_index.fqn, self._values[item.storage_index.fqn])
            else:
                wanted.append(Wanted(self._places.find(item.storage_index), item))
        fill(self._reader, wanted, planner, self._verify, self._threads)

    def _flat(self, text: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        with naming_damage(self._label):
            state = rebuilt(text, tensors)
            if not isinstance(state, dict):
                raise Damaged("it is no dict")
        flat: dict[str, Any] = flatten_state_dict(state)[0]
        return flat
