"""torch.library.opcheck for every op."""

from __future__ import annotations

from typing import Any

import pytest
import torch

ops = torch.ops.tensorizer

TESTS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "load": ((), {"names": ["x"], "verify": "all"}),
    "load_tensors": ((["x", "h"],), {"dtype": torch.float64}),
    "load_slices": ((["x", "h"], [0, 0], [0, 1], [1, 0], [2, 3]), {"dtype": torch.float64}),
    "load_into": ((["x", "h"],), {}),
    "save": (({"x": torch.rand(3, 4)},), {"hashes": "crc32"}),
    "save_tensors": ((["x", "y"], [torch.rand(3, 4), torch.ones(2)]), {}),
    "names": ((), {}),
    "verify": ((), {}),
    "digest": ((), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_opcheck(path: str, name: str) -> None:
    ops.save(path, {"x": torch.rand(3, 4), "h": torch.ones(5, dtype=torch.bfloat16)})
    arguments, options = CASES[name]
    if name == "load_into":
        arguments = (*arguments, [torch.zeros(3, 4), torch.zeros(5, dtype=torch.bfloat16)])
    # Results that are strings cannot be in a graph, so no graph is made of these ops.
    tests = TESTS[:-1] if name in ("names", "digest") else TESTS
    if name == "save":  # under FakeTensorMode alone it is an error
        tests = tuple(test for test in tests if test != "test_faketensor")
    place = path + ".new" if name.startswith("save") else path
    torch.library.opcheck(
        getattr(ops, name).default, (place, *arguments), options, test_utils=tests
    )


def test_opcheck_load_into_not_contiguous(path: str) -> None:
    ops.save(path, {"x": torch.rand(3, 4)})
    torch.library.opcheck(ops.load_into.default, (path, ["x"], [torch.zeros(4, 3).t()]))


def test_opcheck_open(path: str) -> None:
    ops.save(path, {"x": torch.rand(3, 4)})
    with open(path, "rb") as stream:
        data = torch.frombuffer(bytearray(stream.read()), dtype=torch.uint8)
    torch.library.opcheck(ops.open.default, (data,), test_utils=TESTS[:2])


def test_opcheck_digests_of_memory() -> None:
    data = torch.rand(30, 40)
    torch.library.opcheck(ops.sha256.default, (data,))
    torch.library.opcheck(ops.sha256_chunks.default, (data, 1000))
    torch.library.opcheck(ops.crc32.default, (data,))


def test_every_op_is_checked() -> None:
    schemas = torch._C._jit_get_all_schemas()
    names = {s.name.split("::")[1] for s in schemas if s.name.startswith("tensorizer::")}
    deltas = {"delta", "apply", "apply_into"}  # which cannot be in a graph
    assert names == {*CASES, *deltas, "open", "crc32", "sha256", "sha256_chunks"}
    for name in names:
        assert torch.Tag.pt2_compliant_tag in getattr(ops, name).default.tags
