"""What differs between two versions of a model, put in place by operations of weight loaders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.samples import assert_same
from support.views import COLUMNS, ROWS, VIEWS
from tensorizer_ops import Publisher
from tensorizer_ops._versions.elements import (
    ChangedWeight,
    NotInPlace,
    changed_weights,
    write_changes,
)
from tensorizer_ops._versions.node import Node

DTYPES = [
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn),
    *(torch.int8, torch.int64, torch.bool, torch.complex64),
]


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """All bits are random, so there are NaNs."""
    size = (*shape, dtype.itemsize)
    data = torch.randint(
        0, 256, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    if dtype is torch.bool:
        data %= 2
    return data.view(dtype).view(shape)


def changed(tensor: torch.Tensor, seed: int = 2) -> torch.Tensor:
    mask = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(seed)) < 0.05
    return torch.where(mask, random(tuple(tensor.shape), tensor.dtype, seed + 1), tensor)


def saved(
    folder: Path, old: dict[str, torch.Tensor], new: dict[str, torch.Tensor]
) -> dict[str, ChangedWeight]:
    tensorizer_ops.save(folder / "old", old)
    tensorizer_ops.save(folder / "new", new)
    write_changes(folder / "old", folder / "new", folder / "changes")
    return dict(changed_weights(folder / "changes", folder / "new"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_are_brought_to_the_new_version(tmp_path: Path, dtype: torch.dtype) -> None:
    old = random((ROWS, COLUMNS), dtype, 1)
    new = changed(old)
    found = saved(tmp_path, {"w": old}, {"w": new})
    for part in (lambda x: x, *VIEWS):
        target = part(old).clone()
        part(found["w"]).put_changes(target)
        assert_same({"w": target}, {"w": part(new).clone()})
    # Into a part of another tensor, whose elements are not beside one another.
    fused = (
        torch.zeros(COLUMNS, 2 * ROWS, dtype=torch.uint8).repeat(1, dtype.itemsize).view(dtype).t()
    )
    fused[:ROWS].copy_(old)
    found["w"].put_changes(fused[:ROWS])
    assert_same({"w": fused[:ROWS].clone()}, {"w": new})


def test_only_what_differs_is_there(tmp_path: Path) -> None:
    old = {"same": torch.ones(1000), "one": torch.ones(()), "many": torch.arange(100_000)}
    new = {**old, "one": torch.zeros(()), "many": changed(old["many"])}
    found = saved(tmp_path, old, new)
    assert set(found) == {*old}  # loaders get all
    assert [name for name, weight in found.items() if weight.stored.is_changed] == ["one", "many"]
    target = torch.zeros(1000)
    found["same"].put_changes(target)
    assert not target.any()
    target = torch.ones(())
    found["one"].put_changes(target)
    assert target == 0
    assert (tmp_path / "changes").stat().st_size < 0.25 * (tmp_path / "new").stat().st_size


def test_what_is_not_the_older_version_stays(tmp_path: Path) -> None:
    old = random((ROWS, COLUMNS), torch.bfloat16, 1)
    new = changed(old)
    found = saved(tmp_path, {"w": old}, {"w": new})
    target = old.clone()
    for _ in range(2):  # tied weights are copied twice
        found["w"].put_changes(target)
    for other in (old.flip(0), torch.where(torch.rand(ROWS, COLUMNS) < 0.5, old, new)):
        target = other.clone()
        with pytest.raises(NotInPlace, match="'w' is not what the older version has"):
            found["w"].put_changes(target)
        assert_same({"w": target}, {"w": other.clone()})


def test_other_operations_read_the_new_version(tmp_path: Path) -> None:
    old = torch.randn(ROWS, COLUMNS).bfloat16()
    new = torch.where(torch.rand(ROWS, COLUMNS) < 0.05, old + 1, old)
    found = saved(tmp_path, {"w": old}, {"w": new})
    target = torch.zeros(ROWS, COLUMNS)  # of another dtype
    found["w"].put_changes(target)
    assert torch.equal(target, new.float())
    target = torch.zeros(ROWS, COLUMNS).bfloat16()
    target.copy_(found["w"])
    assert torch.equal(target, new)
    for operation in (lambda x: x + 1, lambda x: x.t()[2:], lambda x: x[3:].clone()):
        assert torch.equal(operation(found["w"]), operation(new))


@pytest.mark.parametrize(
    ("new", "why"),
    [
        ({"a": torch.ones(100)}, "different tensors"),
        ({"w": torch.ones(99)}, "another shape"),
        ({"w": torch.ones(100).half()}, "another shape or dtype"),
        ({"w": torch.zeros(100)}, "100 of 100 elements differ"),
    ],
)
def test_what_differs_in_more_than_elements(
    tmp_path: Path, new: dict[str, torch.Tensor], why: str
) -> None:
    with pytest.raises(NotInPlace, match=why):
        saved(tmp_path, {"w": torch.ones(100)}, new)
    assert not (tmp_path / "changes").exists()


def test_elements_without_integers_of_their_size(tmp_path: Path) -> None:
    old = {"w": torch.ones(9, dtype=torch.complex128)}
    with pytest.raises(NotInPlace, match="complex128"):
        saved(tmp_path, old, {"w": changed(old["w"])})


def test_a_node_keeps_what_differs_from_the_version_before(tmp_path: Path) -> None:
    old = {"w": torch.randn(10_000)}
    new = {"w": changed(old["w"])}
    with Publisher(tmp_path / "run") as publisher:
        node = Node(tmp_path / "run", str(tmp_path / "node"), {}, 0.01)
        try:
            files: list[Path] = []
            for number, state in enumerate((old, new, old, {"w": -old["w"]}), 1):
                publisher.publish(state, step=number)
                files.append(node.file(number, 60))
                there = [node.changes(*files[-2:])] if number in (2, 3) else []
                assert list(files[-1].parent.glob("changes*")) == there
                if number == 3:
                    target = new["w"].clone()
                    found = changed_weights(*there, files[-1])
                    dict(found)["w"].put_changes(target)
                    assert torch.equal(target.view(torch.int32), old["w"].view(torch.int32))
        finally:
            node.close()
