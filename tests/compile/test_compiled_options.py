"""Compiled functions notice what is added to the dicts that ops take: ``trust``, and a ``key``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.signer import Signer

ops = torch.ops.tensorizer


def into(path: str, options: dict[str, str]) -> torch.Tensor:
    out = torch.zeros(3)
    ops.load_into(path, ["x"], [out], options=options)
    return out


def verified(path: str, options: dict[str, str]) -> torch.Tensor:
    ops.verify(path, options=options)
    return torch.ones(1)


TRACED: dict[str, Any] = {"traced": ["float32[3]"]}
READS: dict[str, Callable[[str, dict[str, str]], torch.Tensor]] = {
    "load": lambda path, o: ops.load(path, options=o)["x"],
    "load_tensors": lambda path, o: ops.load_tensors(path, ["x"], options=o)[0],
    "traced load_tensors": lambda path, o: ops.load_tensors(path, ["x"], options=o, **TRACED)[0],
    "load_slices": lambda path, o: ops.load_slices(path, ["x"], [0], [0], [0], [1], options=o)[0],
    "traced load_slices": lambda path, o: ops.load_slices(
        path, ["x"], [0], [0], [0], [1], options=o, **TRACED
    )[0],
    "load_into": into,
    "names": lambda path, o: torch.ones(len(ops.names(path, options=o))),
    "verify": verified,
    "digest": lambda path, o: torch.ones(len(ops.digest(path, options=o))),
    "tensorizer_ops.load": lambda path, o: tensorizer_ops.load(path, options=o)["x"],
    "slices": lambda path, o: tensorizer_ops.load(path, slices={"x": slice(1)}, options=o)["x"],
}


@pytest.mark.parametrize("before", [{}, {"retries": "3"}], ids=["no options", "others"])
@pytest.mark.parametrize("call", READS)
def test_trust_that_is_added_is_noticed(
    path: str, signer: Signer, call: str, before: dict[str, str]
) -> None:
    tensorizer_ops.save(path, {"x": torch.ones(3)})
    function = torch.compile(READS[call], backend="eager")
    options = dict(before)
    function(path, options)
    options |= signer.options
    with pytest.raises(Exception, match="it is not signed"):
        function(path, options)


SAVES: dict[str, Callable[..., None]] = {
    "save": lambda path, x, **how: ops.save(path, {"x": x}, **how),
    "save_tensors": lambda path, x, **how: ops.save_tensors(path, ["x"], [x], **how),
    "tensorizer_ops.save": lambda path, x, **how: tensorizer_ops.save(path, {"x": x}, **how),
}


@pytest.mark.parametrize("call", SAVES)
def test_what_is_added_for_a_save_is_noticed(path: str, call: str) -> None:
    with open(path + ".key", "wb") as file:
        file.write(bytes(range(32)))

    def work(x: torch.Tensor, options: dict[str, str], metadata: dict[str, str]) -> torch.Tensor:
        SAVES[call](path, x, options=options, metadata=metadata)
        return x + 1

    function = torch.compile(work, backend="eager")
    options: dict[str, str] = {}
    metadata: dict[str, str] = {}
    function(torch.ones(3), options, metadata)
    assert not tensorizer_ops.info(path).encrypted
    metadata["step"] = "2"
    function(torch.ones(3), options, metadata)
    assert tensorizer_ops.metadata(path) == {"step": "2"}
    options["key"] = f"file:{path}.key"
    function(torch.ones(3), options, metadata)
    assert tensorizer_ops.info(path).encrypted


ANOTHER_TABLE = """
import sys, torch, tensorizer_ops
from tensorizer_ops._compile import dynamo
def fail():
    raise AttributeError
dynamo._register = fail
def work(options):
    out = torch.zeros(3)
    torch.ops.tensorizer.load_into(sys.argv[1], ["x"], [out], options=options)
    torch.ops.tensorizer.verify(sys.argv[1], options=options)
    return out + 1
function = torch.compile(work, backend="eager")
assert function({}).tolist() == [2] * 3
try:
    function({"trust": sys.argv[2]})
except tensorizer_ops.errors.Crypto:
    print("noticed")
"""


def test_a_torch_with_another_table_notices_it_too(path: str, signer: Signer) -> None:
    tensorizer_ops.save(path, {"x": torch.ones(3)})
    command = [sys.executable, "-c", ANOTHER_TABLE, path, signer.options["trust"]]
    assert "noticed" in subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_slices_that_are_added_are_noticed(path: str) -> None:
    tensorizer_ops.save(path, {"x": torch.arange(9.0), "y": torch.arange(9.0)})
    slices: dict[str, Any] = {"y": slice(1)}
    load = torch.compile(lambda: tensorizer_ops.load(path, slices=slices)["x"], backend="eager")
    assert load().shape == (9,)
    slices["x"] = slice(2)
    assert load().equal(torch.arange(2.0))
