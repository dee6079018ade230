"""Every function that takes tensors, with every odd tensor: right bytes, or an error that names it.

The tensors are in ``support/odd_tensors.py``, and the functions in ``support/odd_uses.py``, which
also runs alone.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import tensorizer_ops
from support.odd_tensors import NEED_TORCHAO, TENSORS, Shell
from support.odd_uses import FUNCTIONS, IN_INFERENCE_MODE, NOT_OURS
from support.process import run_python
from tensorizer_ops import errors

# The outcomes are computed once, in one process and its forks.
pytestmark = pytest.mark.xdist_group("odd tensors")

# Where torch comes first, by function, and which tensors it refuses with an error of its own.
TORCH_REFUSES: dict[str, set[str]] = {
    # A lazy parameter refuses to be an argument of an operator, and to be in a state_dict().
    "the op load_into": {"lazy"},
    **{
        function + mode: {"lazy"}
        for function in ("open", "crc32", "sha256", "sha256_chunks")
        for mode in ("", IN_INFERENCE_MODE)
    },
    "safetensors.save_model": {"lazy"},
    # Torch names the method of the reader for __torch_function__, and it has no name.
    "load_into of a scripted reader": {"jagged", "lazy"},
    # Torch loads into a module, and plans a load, and names the tensor in its own way.
    "safetensors.load_model": {
        *("shell", "functional in Python", "lazy", "torchao int8", "distributed"),
        *("distributed wrapper", "distributed two tensors", "distributed float8"),
    },
    "verify_module": {"lazy"},
    "checkpoint.load": {"functional in Python", "torchao int8"},
    "checkpoint.load of a folder": {"functional in Python", "torchao int8"},
}
# An operator cannot tell a lazy tensor from an empty one.
RIGHT = {("the op save" + mode, "lazy") for mode in ("", IN_INFERENCE_MODE)}


@pytest.fixture(scope="module")
def outcomes() -> Any:
    done = run_python("import runpy; runpy.run_module('support.odd_uses', run_name='__main__')")
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_right_bytes_or_a_named_error(outcomes: Any, function: str) -> None:
    found = outcomes[function]
    without = set() if find_spec("torchao") else NEED_TORCHAO
    assert found.keys() == TENSORS.keys() - without
    refused = TORCH_REFUSES.get(function, set())
    wrong = {
        name: text
        for name, text in found.items()
        if text and (function, name) not in RIGHT
        if not (name in refused and text.startswith(NOT_OURS))
    }
    assert not wrong


def test_what_to_do_instead(path: str) -> None:
    """The errors say what the tensor is, and what can be saved in its place."""
    ones = torch.ones(2, 3)
    for tensor, message in (
        (TwoTensor(ones, ones), "TwoTensor, which is made of several tensors: save each of them"),
        (Shell(ones), "Shell, which has no elements in memory: give the tensors in it names"),
        (torch.nested.nested_tensor([ones], layout=torch.jagged), r"unbind\(\) gives its tensors"),
        (ones.to_sparse(), r"its layout is Sparse: to_dense\(\) makes it strided"),
    ):
        with pytest.raises(errors.InvalidArgument, match=f"'x' cannot be saved: .*{message}"):
            tensorizer_ops.save(path, {"x": tensor})
        assert not Path(path).exists()
