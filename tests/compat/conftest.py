"""Fixtures of the tests of tensorizer's API."""

from __future__ import annotations

import pytest
import tensorizer
import torch

import tensorizer_ops
from support.modules import Model
from support.samples import sample


@pytest.fixture
def files(path: str) -> list[str]:
    """Files with a module and a few named tensors, written by tensorizer and by us."""
    written = [path, path + ".classic"]
    for file, module in zip(written, (tensorizer_ops, tensorizer), strict=True):
        serializer = module.TensorSerializer(file)
        serializer.write_module(Model())
        kind = module.TensorType.STATE_DICT
        serializer.write_tensor(7, "entry", kind, sample(torch.float64))
        serializer.close()
    return written
