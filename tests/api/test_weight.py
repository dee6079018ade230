"""Tensors that are read in parts, under the operations that loaders of weights use, which give what
those of plain tensors give.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.views import COLUMNS, ROWS, VIEWS
from tensorizer_ops._front.weight import Stored, Weight

READS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x.t()[2:4],
    lambda x: x.reshape(-1),
    lambda x: x.view(torch.int32),
    lambda x: x[1:].to(torch.bfloat16),
    lambda x: x.clone() + x,
    lambda x: torch.cat([x[:3], x[5:]]),
    lambda x: x[x > 0],
    lambda x: x[torch.tensor([2, 0])],
    lambda x: torch.zeros(ROWS, COLUMNS).copy_(x),
    lambda x: torch.from_numpy(x[3].numpy()),
    lambda x: torch.tensor(x[3:5].tolist()),
    lambda x: torch.nn.Parameter(x, requires_grad=False) * 2,
    lambda x: x[:, 2:10].contiguous().view(-1),
    lambda x: x.narrow(1, 3, 7).reshape(-1),
    lambda x: x[2].view(2, -1).t(),
    lambda x: x[:4].clone().apply_(lambda value: value + 1),
    lambda x: copy.deepcopy(x[1]),
    lambda x: pickle.loads(pickle.dumps(x[:, 1])),
]


@pytest.fixture
def plain() -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def make(tmp_path: Path, plain: torch.Tensor) -> Iterator[Callable[[], Weight]]:
    tensorizer_ops.save(tmp_path / "m.tensors", {"w": plain})
    with tensorizer_ops.Reader(tmp_path / "m.tensors") as reader:
        yield lambda: Weight(Stored(reader, "w"))


def test_operations_give_what_those_of_plain_tensors_give(
    make: Callable[[], Weight], plain: torch.Tensor
) -> None:
    read = make()
    read.t()
    for number, operation in enumerate([*VIEWS, *READS]):
        expected = operation(plain)
        for weight in (make(), read):
            found = operation(weight)
            assert isinstance(found, Weight) == (operation in VIEWS), number
            assert found.shape == expected.shape and found.dtype == expected.dtype, number
            assert torch.equal(found.clone(), expected), number
            if operation in VIEWS and found.numel():
                assert found.is_contiguous() == expected.is_contiguous(), number
                assert found.stride() == expected.stride(), number
                assert found.storage_offset() == expected.storage_offset(), number


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x.split([10, 10]),
        lambda x: x.split([-1, 65]),
        lambda x: x.split([10, 54, 5]),
        lambda x: x.split(0),
        lambda x: x[0, 0].split(1),
        lambda x: x.narrow(0, 60, 5),
        lambda x: torch.ops.aten.slice.Tensor(x, 0, 0, 4, -1),
    ],
)
def test_wrong_views_raise_what_plain_tensors_raise(
    make: Callable[[], Weight], plain: torch.Tensor, operation: Callable[[torch.Tensor], Any]
) -> None:
    with pytest.raises(RuntimeError) as expected:
        operation(plain)
    with pytest.raises(RuntimeError, match=re.escape(str(expected.value).partition("\n")[0])):
        operation(make())


def test_only_parts_are_read(
    make: Callable[[], Weight], monkeypatch: pytest.MonkeyPatch, plain: torch.Tensor
) -> None:
    read: list[int] = []
    load = tensorizer_ops.Reader.load

    def counted(*args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        found = load(*args, **kwargs)
        read.extend(tensor.numel() for tensor in found.values())
        return found

    monkeypatch.setattr(tensorizer_ops.Reader, "load", counted)
    weight = make()
    parts = [operation(weight) for operation in VIEWS]
    assert "'w'" in repr(parts[0]) and not read
    torch.empty(ROWS, COLUMNS, device="meta").copy_(weight)
    assert not read
    target = torch.empty(8, COLUMNS)
    target.copy_(weight[8:16])
    assert read == [8 * COLUMNS] and torch.equal(target, plain[8:16])
    half = weight[:, :24]
    assert half.sum() == half.sum()
    assert read[1:] == [ROWS * 24]  # once
    read.clear()
    with torch.inference_mode():
        for loaded in (weight, make()):
            target.copy_(loaded.narrow(0, 16, 24).chunk(3)[1])
            assert read == [8 * COLUMNS] and torch.equal(target, plain[24:32])
            assert loaded[1:3].reshape(-1).shape == (2 * COLUMNS,)
            read.clear()


def test_what_is_written_is_seen_by_all_parts(make: Callable[[], Weight]) -> None:
    weight = make()
    row, columns = weight[3], weight.narrow(1, 2, 5)
    columns.clone()  # has been read before
    row.zero_()
    assert not columns[3].clone().any() and not weight[3].clone().any() and weight[4].clone().any()
    weight[3:5] = 7
    assert (row.clone() == 7).all()
    torch.add(torch.ones(COLUMNS), 1, out=row)
    assert (weight[3].clone() == 2).all()


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[3].view(2, -1).mul_(2),
        lambda x: x[:4].t().zero_(),
        lambda x: x[5].apply_(lambda value: 2.0),
        lambda x: x[:, 1].map_(torch.zeros(ROWS), lambda one, other: other),
        lambda x: x[6:8].numpy().fill(3),
        lambda x: x.narrow(1, 4, 2).unsqueeze(0).copy_(torch.ones(1, ROWS, 2)),
        # These do not declare that they return views.
        lambda x: torch.ops.aten._unsafe_view(x[3:5], [-1]).zero_(),
        lambda x: torch.unsafe_split(x[3:9], 2)[1].zero_(),
        lambda x: (
            torch.sparse_csr_tensor(
                torch.tensor([0, COLUMNS]), torch.arange(COLUMNS), x[3], (1, COLUMNS)
            )
            .values()
            .fill_(5)
        ),
    ],
)
def test_what_is_written_through_a_view_is_seen(
    make: Callable[[], Weight], plain: torch.Tensor, write: Callable[[torch.Tensor], Any]
) -> None:
    weight, expected = make(), plain.clone()
    seen = weight[2:9]
    seen.clone()  # has been read before
    write(weight)
    write(expected)
    assert torch.equal(seen.clone(), expected[2:9])
    assert torch.equal(weight.clone(), expected) and not torch.equal(expected, plain)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.t_(),
        lambda x: x[2:4].transpose_(0, 1),
        lambda x: x.swapaxes_(0, 1),
        lambda x: x[:1].squeeze_(),
        lambda x: x.unsqueeze_(0),
        lambda x: x.as_strided_((4, 4), (1, 4)),
        lambda x: x.resize_(4, 4),
        lambda x: x.set_(torch.ones(4, 4)),
        lambda x: x.data.t_(),
        lambda x: setattr(x, "data", x.data.t().contiguous()),
    ],
)
def test_the_shape_and_the_memory_of_a_weight_stay(
    make: Callable[[], Weight], plain: torch.Tensor, change: Callable[[torch.Tensor], Any]
) -> None:
    weight = make()
    for mode in (False, True):
        with torch.inference_mode(mode), pytest.raises(ValueError, match=r"t\(\) in place of t_"):
            change(weight)
    assert weight.squeeze_().detach_() is weight  # which change nothing
    assert torch.equal(torch.zeros(ROWS, COLUMNS).copy_(weight), plain)


def test_a_weight_is_no_data_of_another_tensor(make: Callable[[], Weight]) -> None:
    """Torch would take it for one with memory, and crash."""
    parameter = torch.nn.Parameter(torch.zeros(ROWS, COLUMNS))
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        parameter.data = make()
    assert not parameter.detach().any()
