"""The functions of ``safetensors.numpy``: arrays in place of tensors."""

from __future__ import annotations

import numpy
import torch

from tensorizer_ops._base.arguments import checked, wrong
from tensorizer_ops._base.targets import Target
from tensorizer_ops._front.load_save import save as _save
from tensorizer_ops.safetensors import torch as _torch

__all__ = ["load", "load_file", "save", "save_file"]

Arrays = dict[str, numpy.ndarray]


@checked
def save_file(
    tensor_dict: Arrays, filename: Target, metadata: dict[str, str] | None = None
) -> None:
    """Save arrays to a safetensors file, with the same bytes as the ``safetensors`` library."""
    tensors = {name: _tensor(name, array) for name, array in tensor_dict.items()}
    _save(filename, tensors, hashes="none", options={"format": "safetensors"}, metadata=metadata)


@checked
def save(tensor_dict: Arrays, metadata: dict[str, str] | None = None) -> bytes:
    """Return the bytes of the file that :func:`save_file` writes."""
    return _torch.written(lambda place: save_file(tensor_dict, place, metadata))


@checked
def load_file(filename: Target, *, backend: str = "mmap") -> Arrays:
    """Load all arrays of a file; ``backend="pread"`` loads copies instead of mapping the file."""
    with _torch.safe_open(filename, "np", backend=backend) as opened:
        return opened.get_tensors()


@checked
def load(data: bytes) -> Arrays:
    """Load all arrays of a file whose bytes are given."""
    return {name: _torch.as_array(name, tensor) for name, tensor in _torch.load(data).items()}


def _tensor(name: str, array: numpy.ndarray) -> torch.Tensor:
    if not isinstance(array, numpy.ndarray):
        raise wrong(f"tensor_dict[{name!r}]", array, "an array of NumPy")
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    try:
        return torch.from_numpy(native if native.flags.writeable else native.copy())
    except TypeError as error:
        raise TypeError(f"tensor {name!r} cannot be saved: {error}") from None
