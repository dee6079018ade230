"""What a compiler sees of a file is of one file: the one that the program then asks for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tensorizer_ops
from support.scripted import Asked, scripted
from tensorizer_ops import errors

ops = torch.ops.tensorizer


LOADS: dict[str, Callable[[str], torch.Tensor]] = {
    "load": lambda uri: tensorizer_ops.load(uri)["x"],
    "slices": lambda uri: tensorizer_ops.load(uri, slices={"x": slice(-2, None)})["x"],
    "load_tensors": lambda uri: ops.load_tensors(uri, ["x"])[0],
    "load_slices": lambda uri: ops.load_slices(uri, ["x"], [0], [0], [0], [2])[0],
}


@pytest.mark.parametrize("load", LOADS)
def test_a_server_that_changes_the_file_meanwhile_mixes_nothing(path: str, load: str) -> None:
    files = []
    for first, count in ((100, 10), (200, 20)):
        ops.save(path, {"x": torch.arange(count, dtype=torch.int32) + first})
        files.append((Path(path).read_bytes(), LOADS[load](path).clone().tolist()))
    old, new = files
    opened = other = 0

    def answer(asked: Asked) -> None:
        nonlocal opened
        opened += 1
        asked.say_range((old if opened == other else new)[0], ETag=f'"{opened == other}"')

    with scripted(answer) as server:
        uri = server.url("model.tensors")
        # The file is opened to see whether it can be traced, to trace it, and to load.
        for other in range(1, 4):
            torch.compiler.reset()
            opened = 0
            function = torch.compile(lambda: LOADS[load](uri) + 0, fullgraph=True)
            if other == 1:
                assert function().tolist() == new[1]
            else:
                with pytest.raises(errors.InvalidArgument, match="trace it again"):
                    function()
            assert opened == 3


def test_fake_tensors_are_those_of_the_file_now(path: str) -> None:
    ops.save(path, {"x": torch.ones(6, dtype=torch.int32)})
    before = os.stat(path)
    with FakeTensorMode():
        assert ops.load_tensors(path, ["x"])[0].dtype == torch.int32
    ops.save(path + ".new", {"x": torch.ones(6)})
    # In place, with the same size and age: nothing tells the files apart but what is in them.
    with open(path, "r+b") as file:
        assert file.write(Path(path + ".new").read_bytes()) == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with FakeTensorMode():
        assert ops.load_tensors(path, ["x"])[0].dtype == torch.float32


def test_a_call_that_was_traced_has_the_types_and_shapes_in_it() -> None:
    texts = ["bfloat16[2, 3]", "int64[]", "bool[0]", "all"]
    with FakeTensorMode():
        whole = ops.load_tensors("missing.tensors", ["x", "y", "z"], traced=texts)
        parts = ops.load_slices("missing.tensors", ["x"], [0], [1], [0], [2], [2], traced=texts[:1])
    assert [(x.dtype, tuple(x.shape)) for x in whole] == [
        (torch.bfloat16, (2, 3)),
        (torch.int64, ()),
        (torch.bool, (0,)),
    ]
    assert [(x.dtype, tuple(x.shape)) for x in parts] == [(torch.bfloat16, (2, 2))]


@pytest.mark.parametrize(
    "text", ["float32", "load[3]", "float32[-1]", "float32[1,", "float32[9 9]"]
)
def test_text_that_no_trace_made_is_refused(text: str) -> None:
    with FakeTensorMode(), pytest.raises(errors.InvalidArgument, match="no type and shape"):
        ops.load_tensors("missing.tensors", ["x"], traced=[text])


def test_a_traced_call_must_fit_its_names() -> None:
    def load(*slices: list[int]) -> None:
        ops.load_slices("missing.tensors", ["x"], *slices, traced=["float32[4]"])

    with FakeTensorMode():
        with pytest.raises(errors.InvalidArgument, match="1 names and 2 traced shapes"):
            ops.load_tensors("missing.tensors", ["x"], traced=["float32[4]", "float32[4]"])
        with pytest.raises(errors.InvalidArgument, match="tensor number 1 of the 1 names"):
            load([1], [0], [0], [1])
        for slices in ([1], [0], [1]), ([0], [4], [1]), ([0], [-1], [1]), ([0], [0], [-1]):
            with pytest.raises(errors.InvalidArgument, match=r"'x' has the shape \[4\], and dim"):
                load([0], *slices)
        for step in (0, 4):
            with pytest.raises(errors.InvalidArgument, match=r"'x' has the shape \[4\], and dim"):
                load([0], [0], [0], [2], [step])
        with pytest.raises(errors.InvalidArgument, match="a traced program would keep"):
            secret = {"s3_secret_access_key": "sesame"}
            ops.load_tensors("s3://b/x", ["x"], options=secret, traced=["float32[4]"])
