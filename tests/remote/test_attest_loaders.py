"""`attest` with loaders: what they hide, and what they make of the file alone."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.masked import masked_tensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import tensorizer_ops
from support.attested import flip, halved, of_file, with_
from support.odd_tensors import Wrapper
from support.samples import same
from tensorizer_ops import Reader, attest
from tensorizer_ops._front.weight import Stored, Weight, stored_in


def overlapping(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    model.weight.data[:4].copy_(weight[:4])
    model.weight.data[1:5].copy_(weight[1:5])


def twice(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    model.weight.data[:4].copy_(weight[:4])
    model.weight.data[:4].view(-1).copy_(weight[:4].reshape(-1))


def expanded(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    model.weight.data[:1].expand(8, 8).copy_(of_file(weights)[:1].expand(8, 8))


def of_bytes(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = (of_file(weights) + 0).view(torch.uint8)
    model.weight.data.view(torch.uint8)[:2].copy_(weight[:2])


def kept(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    whole = model.weight.data.clone()
    whole[:4] = of_file(weights)[:4]
    model.weight.data.copy_(whole)


def kept_by_add(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    sum_ = of_file(weights) * 0
    sum_ += model.weight.data
    model.weight.data.copy_(sum_)


def kept_in_weight(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    weight[4:].copy_(model.weight.data[4:])
    model.weight.data.copy_(weight)


def kept_in_view(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    weight.view(-1)[32:] = model.weight.data.view(-1)[32:]
    model.weight.data.copy_(weight[:])


def turned(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    model.weight.data = model.weight.data.t()
    model.weight.data.copy_(of_file(weights))


def negated(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    model.weight.data.copy_(of_file(weights))
    model.weight.data = torch._neg_view(model.weight.data)


def replaced(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    model.weight.data.copy_(of_file(weights))
    model.weight = torch.nn.Parameter(torch.zeros(8, 8))


def by_alias(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    torch.from_numpy(model.weight.detach().numpy()[4:]).copy_(weight[4:])
    model.weight.data[:4].copy_(weight[:4])


def kept_under_overlap(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    whole = model.weight.data.clone()
    whole.as_strided((8, 8), (1, 1)).zero_()
    whole[:2] = of_file(weights)[:2]
    model.weight.data.copy_(whole)


def kept_in_sparse(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    model.weight.data.copy_(model.weight.data.to_sparse().to_dense())


def kept_in_nested(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    nested = torch.nested.nested_tensor([model.weight.data])
    model.weight.data.copy_(nested.to_padded_tensor(0.0)[0])


def kept_in_buffer(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    model.weight.data.copy_(model.get_buffer("stage"))


@torch.library.custom_op("attest_test::copy_like", mutates_args=())
def copy_like(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()


def kept_by_custom_op(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    model.weight.data.copy_(copy_like(model.weight.data))


def kept_in_attribute(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    model.weight.data.copy_(model.backup)


def kept_in_wrapper(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    model.weight.data.copy_((TwoTensor(model.weight.data, model.weight.data) + 0).a)


def kept_in_copied_wrapper(
    model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]
) -> None:
    of_file(weights)
    made = TwoTensor(torch.zeros(8, 8), torch.zeros(8, 8))
    made.copy_(TwoTensor(model.weight.data, model.weight.data))
    model.weight.data.copy_(made.b)


def kept_under_mask(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    mask = torch.ones(8, 8, dtype=torch.bool)
    model.weight.data.copy_((masked_tensor(model.weight.data, mask) + 0).get_data())


def kept_in_array(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    model.weight.data.copy_(torch.from_numpy(model.weight.detach().numpy().copy()))


def kept_in_storage(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    storage = model.weight.data.untyped_storage().clone()
    model.weight.data.copy_(torch.empty(0).set_(storage, 0, (8, 8)))


def kept_beside_empty_part(
    model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]
) -> None:
    of_file(weights)
    pieces = [piece.unsqueeze(0) for piece in model.weight.data.split([0, 8])]
    model.weight.data.copy_(pieces[1][0].clone())


def kept_behind_empty_part(
    model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]
) -> None:
    of_file(weights)
    model.backup[:0].zero_()
    torch.add(model.backup[:0], 1, out=model.backup[:0])
    model.weight.data.copy_(model.backup)


def kept_beside_expanded(
    model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]
) -> None:
    first = of_file(weights).reshape(-1)[:1]
    flat = model.backup.reshape(-1)
    flat[:1].copy_(first)
    model.stage.view(-1).copy_(flat[:1].expand(64))
    model.weight.data.copy_(model.backup)


def read_behind_part(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    flat = model.backup.reshape(-1)
    flat[:1].copy_(of_file(weights).reshape(-1)[:1])
    made = torch.as_strided_copy(flat[:1], (8, 8), (8, 1), 0)
    model.weight.data.copy_(made)


def scattered(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    made = torch.slice_scatter(model.backup[:0], torch.empty(0, 8))
    model.weight.data.copy_(made.as_strided((8, 8), (8, 1)))


def in_grown_storage(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    made = of_file(weights)[0].clone()
    made.untyped_storage().resize_(256)
    whole = made.as_strided((8, 8), (8, 1))
    whole.numpy()[1:] = model.backup.numpy()[1:]  # which such memory may have had before
    model.weight.data.copy_(whole)


def kept_in_sparse_values(
    model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]
) -> None:
    of_file(weights)
    places = torch.zeros(1, 64, dtype=torch.int64)
    empty = torch.sparse_coo_tensor(places, model.backup.reshape(-1), (0,), check_invariants=False)
    model.weight.data.copy_(empty._values().view(8, 8))


def filled_by_meta(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    made = model.backup.clone()
    made.fill_(torch.zeros((), device="meta"))  # which does nothing
    model.weight.data.copy_(made)


def beside_strided_output(
    model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]
) -> None:
    made = torch.empty(16, 8)
    made.copy_(torch.cat([model.backup, model.backup]))
    torch.ops.aten.narrow_copy.out(of_file(weights), 0, 0, 8, out=made[::2])
    model.weight.data.copy_(made[::2])


def read_behind_empty_part(
    model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]
) -> None:
    of_file(weights)
    behind = model.backup.reshape(-1)[:64].as_strided((8, 1, 0), (8, 8, 1))
    model.weight.data.copy_(torch.ops.aten.unfold_backward(behind, [8, 8], 1, 8, 1))


def kept_in_file(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    with tempfile.TemporaryDirectory() as folder:
        tensorizer_ops.save(f"{folder}/other.tensors", {"a": model.weight.data})
        model.weight.data.copy_(tensorizer_ops.load(f"{folder}/other.tensors")["a"])


def under_sparse_values(
    model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]
) -> None:
    ((_, weight),) = weights
    rows, columns = torch.tensor([0, 8]), torch.arange(8)
    torch.sparse_csr_tensor(rows, columns, weight[7], (1, 8)).values().fill_(5)
    model.weight.data.copy_(weight)


def mapped_into_output(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    with tempfile.NamedTemporaryFile() as file:
        file.write(model.weight.detach().numpy().tobytes())
        file.flush()
        own = torch.zeros(64)
        torch.ops.aten.from_file.out(file.name, False, 64, out=own)
    model.weight.data.copy_(own.view(8, 8))


@torch.library.custom_op("attest_test::backup", mutates_args=())
def backup() -> torch.Tensor:
    return BACKUP.clone()


BACKUP = torch.empty(8, 8)


def kept_by_op(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    BACKUP.copy_(model.weight.data)
    model.weight.data.copy_(backup())


def scaled(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    model.weight.data.copy_(weight + model.backup - weight)


def foreach(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    torch._foreach_copy_([model.weight.data], [of_file(weights)])


class Other(Wrapper):
    """Passes another tensor on than the one in it, which it does not tell."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*(each.other if isinstance(each, cls) else each for each in args))


def kept_in_subclass(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    model.weight.data.copy_(with_(Other(of_file(weights) + 0), other=model.backup))


def kept_beside_memory(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    BACKUP.copy_(of_file(weights))
    model.weight.data.copy_(halved(BACKUP))


def kept_by_map(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    stage = of_file(weights) + 0
    stage.map_(model.weight.data, lambda one, other: other)
    model.weight.data.copy_(stage)


def kept_by_map2(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    weight.map2_(model.weight.data, model.backup, lambda one, other, _: other)
    model.weight.data.copy_(weight)


def by_map(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    model.weight.data.map_(of_file(weights).clone(), lambda one, other: other)


def kept_in_uninitialized(
    model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]
) -> None:
    stage = torch.empty(8, 8)
    stage[:7].copy_(of_file(weights)[:7])
    with tempfile.TemporaryDirectory() as folder:
        tensorizer_ops.save(f"{folder}/other.tensors", {"a": model.weight.data[7:]})
        tensorizer_ops.load_into({"a": stage[7:]}, f"{folder}/other.tensors")
    model.weight.data.copy_(stage)


def kept_in_resized(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    stage = torch.zeros(0).resize_(8, 8)
    stage.numpy()[:] = model.weight.detach().numpy()
    model.weight.data.copy_(stage)


@torch.library.custom_op("attest_test::clear_both", mutates_args=["one"])
def clear_both(one: torch.Tensor, other: torch.Tensor) -> None:
    one.zero_()
    other.zero_()  # which it does not declare


def by_custom_op(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    clear_both(model.weight.data[:1], model.weight.data[1:])


def kept_under_expanded(
    model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]
) -> None:
    whole = model.weight.data.clone()
    whole[:1].expand(8, 8).zero_()  # replaces no other row
    whole[:1] = of_file(weights)[:1]
    model.weight.data.copy_(whole)


def kept_in_statistics(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    norm = torch.nn.BatchNorm1d(64, momentum=1.0)
    norm(model.weight.data.view(1, 64, 1).expand(1, 64, 2).contiguous())
    model.weight.data.copy_(norm.get_buffer("running_mean").view(8, 8))


def as_statistics(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    given = of_file(weights).view(1, 64, 1).expand(1, 64, 2).contiguous()
    mean, variance = model.weight.data.view(64), torch.ones(64)
    torch.nn.functional.batch_norm(given, mean, variance, training=True, momentum=1.0)


def kept_in_loaded(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    stage = torch.zeros(8, 8)
    with tempfile.TemporaryDirectory() as folder:
        tensorizer_ops.save(f"{folder}/other.tensors", {"a": model.weight.data})
        torch.ops.tensorizer.load_into(f"{folder}/other.tensors", ["a"], [stage])
    model.weight.data.copy_(stage)


def of_another_file(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    of_file(weights)
    with tempfile.TemporaryDirectory() as folder:
        tensorizer_ops.save(f"{folder}/other.tensors", {"a": model.weight.data})
        with Reader(f"{folder}/other.tensors") as reader:
            (stored,) = stored_in(reader, ["a"], Stored)
            model.weight.data.copy_(Weight(stored))


def to_the_right_place(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight, own = of_file(weights), model.weight.data
    assert torch.cat([weight[:4], weight[4:]], out=own) is own
    assert torch.stack(list(weight.unbind()), out=own) is own
    places = torch.zeros(8, 8, dtype=torch.int64)
    found = torch.sort(weight, out=(own, places))
    assert found.values is own and found.indices is places and places.any()


@pytest.mark.parametrize(
    "load",
    [
        overlapping,
        kept_in_subclass,
        kept_beside_memory,
        kept_by_map,
        kept_by_map2,
        by_map,
        kept_in_uninitialized,
        kept_in_resized,
        by_custom_op,
        kept_under_expanded,
        kept_in_statistics,
        as_statistics,
        kept_in_loaded,
        of_another_file,
        to_the_right_place,
        twice,
        expanded,
        of_bytes,
        kept,
        kept_by_add,
        kept_in_weight,
        kept_in_view,
        turned,
        negated,
        replaced,
        by_alias,
        kept_under_overlap,
        kept_in_sparse,
        kept_in_nested,
        kept_by_custom_op,
        foreach,
        kept_in_buffer,
        kept_in_attribute,
        kept_in_wrapper,
        kept_in_copied_wrapper,
        kept_under_mask,
        kept_in_array,
        kept_in_storage,
        in_grown_storage,
        kept_in_sparse_values,
        filled_by_meta,
        beside_strided_output,
        read_behind_empty_part,
        kept_beside_expanded,
        read_behind_part,
        scattered,
        kept_beside_empty_part,
        kept_behind_empty_part,
        kept_in_file,
        mapped_into_output,
        kept_by_op,
        under_sparse_values,
        scaled,
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of")
def test_loaders_that_hide_what_differs(tmp_path: Path, load: Any) -> None:
    """Every element is compared, with one of the file, and the model stays as it is."""
    stored = torch.randn(8, 8)
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": stored})
    model = torch.nn.Linear(8, 8, bias=False)
    weight = model.weight
    with torch.no_grad():
        weight.copy_(stored.t() if load is turned else stored)
        if load is not turned:
            weight[7, 0] += 1
    model.register_buffer("stage", weight.detach().clone(), persistent=False)
    model.backup = weight.detach().clone()
    before, data = weight.detach().clone(), weight.data_ptr()
    found = attest(model, tmp_path / "m.tensors", load_weights=lambda weights: load(model, weights))
    assert not found.equal and not found.compared
    assert model.weight is weight and weight.data_ptr() == data
    assert weight.is_contiguous() and not weight.is_neg() and same(weight.data, before)


def in_shared_memory(model: torch.nn.Linear, weight: torch.Tensor) -> None:
    model.weight.data.copy_(weight)
    model.share_memory()


def without_memory(model: torch.nn.Linear, weight: torch.Tensor) -> None:
    model.weight.data.copy_(weight)
    model.weight.untyped_storage().resize_(0)


def as_data(model: torch.nn.Linear, weight: torch.Tensor) -> None:
    model.weight.data = weight
    assert same(model.weight.clone(), weight.clone())


@pytest.mark.parametrize("move", [in_shared_memory, without_memory, as_data])
def test_a_loader_that_moves_the_memory_of_a_parameter(tmp_path: Path, move: Any) -> None:
    stored = torch.randn(8, 8)
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": stored})
    model = torch.nn.Linear(8, 8, bias=False)
    model.weight.data.copy_(stored)
    found = attest(
        model, tmp_path / "m.tensors", load_weights=lambda weights: move(model, of_file(weights))
    )
    assert found.not_compared == {"weight": "the loader gives it other memory"}
    assert not found.compared and not found.different


@pytest.mark.parametrize("rows", [8, 100_000])
def test_weights_of_an_earlier_file(tmp_path: Path, rows: int) -> None:
    model = torch.nn.Linear(8, rows, bias=False)
    tensorizer_ops.save(tmp_path / "1.tensors", {"a": model.weight})
    tensorizer_ops.save(tmp_path / "2.tensors", {"a": model.weight * 2})
    cache: dict[str, torch.Tensor] = {}

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            model.weight.data.copy_(cache.setdefault(name, weight))

    assert attest(model, tmp_path / "1.tensors", load_weights=load).equal
    found = attest(model, tmp_path / "2.tensors", load_weights=load)
    text = "what the loader copies to it is not made of the file alone"
    assert found.not_compared == {"weight": text} and not found.compared


def test_a_write_to_no_element(tmp_path: Path) -> None:
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": torch.zeros(8)})
    model = torch.nn.ParameterDict({"a": torch.zeros(8)})

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        weight, own = of_file(weights), model["a"].data
        for part in (slice(0, 3), slice(3, 3), slice(4, 8)):
            own[part].copy_(weight[part])

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    assert found.not_compared == {"a": "1 of its elements are from no file"}


def zeroed_first(weight: torch.Tensor, target: torch.Tensor) -> None:
    target.zero_()
    target[:8].copy_(weight)


def filled_by_bytes(weight: torch.Tensor, target: torch.Tensor) -> None:
    target.fill_(torch.tensor(7))
    target[8:].view(torch.uint8).zero_()
    target[:8].t().copy_(weight.t())


def several_times(weight: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(torch.cat([weight * 2, weight[:2]]))
    target[:, 3:].copy_(torch.cat([weight, weight[:2]])[:, 3:])
    target.zero_()
    target[:8].copy_(-weight)
    target[:8, ::2].copy_(weight[:, ::2])
    target[:8, 1::2].copy_(weight[:, 1::2] + 0)


def by_large_parts(weight: torch.Tensor, target: torch.Tensor) -> None:
    target[2:10].copy_(weight)
    target[8:].zero_()
    target[:8].copy_(weight)


def in_two_steps(weight: torch.Tensor, target: torch.Tensor) -> None:
    target.zero_()
    target[:8, :4].copy_(weight[:, :4].flip(0))
    target[:8].copy_(weight)


@pytest.mark.parametrize(
    "load", [zeroed_first, filled_by_bytes, several_times, by_large_parts, in_two_steps]
)
@pytest.mark.parametrize("columns", [8, 40_000])  # the larger ones are not read before
def test_only_what_is_written_last_counts(tmp_path: Path, load: Any, columns: int) -> None:
    stored = torch.randn(8, columns)
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": stored})
    model = torch.nn.Linear(columns, 10, bias=False)

    def load_weights(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        load(of_file(weights), model.weight.data)

    for place in (None, [5, 3], [5, 4], [9, 3]):
        with torch.no_grad():
            model.weight.copy_(torch.cat([stored, torch.zeros(2, columns)]))
        if place:
            flip(model.weight[tuple(place)], 0)
        before = model.weight.detach().clone()
        found = attest(model, tmp_path / "m.tensors", load_weights=load_weights)
        assert found.equal == (place is None) and not found.not_compared
        for text in found.different.values():
            assert text.startswith(f"element {place} is not that of ") and ";" not in text
        assert same(model.weight.data, before)


def at_once(weights: dict[str, torch.Tensor], target: torch.Tensor) -> None:
    for weight in weights.values():
        target.copy_(weight)


def computed(weights: dict[str, torch.Tensor], target: torch.Tensor) -> None:
    made = [weight.t().contiguous() for weight in weights.values()]
    for each in made:
        target.copy_(each.t())


def staged_in_turn(weights: dict[str, torch.Tensor], target: torch.Tensor) -> None:
    stage = torch.empty(8, 8)
    for weight in weights.values():
        stage.copy_(weight)
        target.copy_(stage)


def behind_zeros(weights: dict[str, torch.Tensor], target: torch.Tensor) -> None:
    for weight in weights.values():
        target.zero_()
        target[:4].copy_(weight[:4])
        target[4:].copy_(weight[4:])


def stacked(weights: dict[str, torch.Tensor], target: torch.Tensor) -> None:
    for each in torch.stack(list(weights.values())):
        target.copy_(each)


@pytest.mark.parametrize("load", [at_once, computed, staged_in_turn, behind_zeros, stacked])
def test_two_tensors_of_the_file_in_one_place(tmp_path: Path, load: Any) -> None:
    """One of them is lost, which nobody may miss only if they are equal."""
    stored = {"embed": torch.randn(8, 8), "head": torch.randn(8, 8)}
    model = torch.nn.ParameterDict({"embed": stored["head"].clone()})
    model["head"] = model["embed"]

    def load_weights(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        load(dict(weights), model["head"].data)

    stored["embed"] = stored["head"].clone()
    tensorizer_ops.save(tmp_path / "m.tensors", stored)
    assert attest(model, tmp_path / "m.tensors", load_weights=load_weights).equal
    flip(stored["embed"], 4 * 9)
    tensorizer_ops.save(tmp_path / "m.tensors", stored)
    found = attest(model, tmp_path / "m.tensors", load_weights=load_weights)
    assert "the file has another than 'head', with which it is tied" in found.different.values()


def test_parameters_of_the_root_that_the_model_ties(tmp_path: Path) -> None:
    """Their names are only one part of those in the file."""
    model = torch.nn.ParameterDict({"embed": torch.zeros(8)})
    model["head"] = model["embed"]

    def load_weights(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            model[name.removeprefix("model.")].data.copy_(weight)

    for head, is_equal in ((torch.zeros(8), True), (torch.ones(8), False)):
        tensorizer_ops.save(
            tmp_path / "m.tensors", {"model.head": head, "model.embed": torch.zeros(8)}
        )
        found = attest(model, tmp_path / "m.tensors", load_weights=load_weights)
        assert found.equal == is_equal


def test_names_of_one_part_that_end_others(tmp_path: Path) -> None:
    """A tied parameter of the root is called "weight", as are parts of others in the file."""
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.randn(4, 4))
    model.proj = torch.nn.Linear(4, 4, bias=False)
    model.proj.weight = model.weight
    model.qk = torch.nn.Linear(4, 8, bias=False)
    halves = dict(zip(("q.weight", "k.weight"), model.qk.weight.detach().chunk(2), strict=True))
    tensorizer_ops.save(tmp_path / "m.tensors", {"weight": model.weight.detach(), **halves})

    def load_weights(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        given = dict(weights)
        model.weight.data.copy_(given["weight"])
        model.qk.weight.data.copy_(torch.cat([given["q.weight"], given["k.weight"]]))

    assert attest(model, tmp_path / "m.tensors", load_weights=load_weights).equal


@pytest.mark.parametrize(
    "view",
    [lambda weight: weight.t(), lambda weight: weight.view(2, 18), lambda weight: weight[:3]],
)
def test_weights_that_the_model_ties_by_a_view(tmp_path: Path, view: Any) -> None:
    model = torch.nn.ParameterDict({"embed": torch.randn(6, 6)})
    model["head"] = torch.nn.Parameter(view(model["embed"].data))
    stored = {name: each.detach().clone() for name, each in model.items()}

    def load_weights(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            model[name].data.copy_(weight)

    tensorizer_ops.save(tmp_path / "m.tensors", stored)
    assert attest(model, tmp_path / "m.tensors", load_weights=load_weights).equal
    flip(stored["embed"], 5)
    tensorizer_ops.save(tmp_path / "m.tensors", stored)
    assert not attest(model, tmp_path / "m.tensors", load_weights=load_weights).equal


@pytest.mark.parametrize("kind", ["detached", "no parameter"])
def test_a_parameter_that_no_weight_fills(tmp_path: Path, kind: str) -> None:
    """And that the state_dict() shows as a plain tensor, as it does buffers."""
    model = torch.nn.ModuleDict({name: torch.nn.Linear(4, 4, bias=False) for name in "ab"})
    tensorizer_ops.save(tmp_path / "m.tensors", {"a.weight": model["a"].weight.detach()})
    if kind == "detached":
        model["b"].register_state_dict_post_hook(
            lambda _, state, prefix, __: state.update(
                {f"{prefix}weight": state[f"{prefix}weight"].detach()}
            )
        )
    else:
        model["b"]._parameters["weight"] = model["b"].weight.detach()

    def load_weights(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            model.get_parameter(name).data.copy_(weight)

    found = attest(model, tmp_path / "m.tensors", load_weights=load_weights)
    assert found.compared == ["a.weight"] and list(found.not_compared) == ["b.weight"]


@pytest.mark.parametrize("by_loader", [False, True])
def test_a_model_that_was_made_for_inference(tmp_path: Path, by_loader: bool) -> None:
    with torch.inference_mode():
        model = torch.nn.Linear(4, 4)
    tensorizer_ops.save(tmp_path / "m.tensors", model.state_dict())

    def load_weights(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            model.get_parameter(name).data.copy_(weight)

    how = load_weights if by_loader else None
    assert attest(model, tmp_path / "m.tensors", load_weights=how).equal
    assert attest(model.state_dict(), tmp_path / "m.tensors").equal


@pytest.mark.parametrize("prefix", ["", "model."])
def test_layers_that_the_model_ties(tmp_path: Path, prefix: str) -> None:
    """Many names end alike, and the loader knows them without a prefix."""
    inner = torch.nn.Module()
    inner.layers = torch.nn.ModuleList(
        torch.nn.ModuleDict({"proj": torch.nn.Linear(8, 8, bias=False)}) for _ in range(3)
    )
    inner.head = torch.nn.Linear(8, 8, bias=False)
    model = torch.nn.ModuleDict({"model": inner}) if prefix else inner
    stored = {name.removeprefix(prefix): each.clone() for name, each in model.state_dict().items()}

    def load_weights(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            model.get_parameter(prefix + name).data.copy_(weight)

    tensorizer_ops.save(tmp_path / "m.tensors", stored)
    assert attest(model, tmp_path / "m.tensors", load_weights=load_weights).equal
    inner.layers[0].proj.weight = inner.layers[2].proj.weight
    found = attest(model, tmp_path / "m.tensors", load_weights=load_weights)
    why = "the file has another than 'layers.2.proj.weight', with which it is tied"
    assert found.different == {"layers.0.proj.weight": why}


def resized(image: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.interpolate(image, size=(7, 1), mode="bilinear", antialias=True)


@pytest.mark.parametrize("other", ["draft", "tower"])
@pytest.mark.parametrize("is_head_of_file", [True, False])
def test_ties_in_parts_of_the_file_that_the_model_has_not(
    tmp_path: Path, other: str, is_head_of_file: bool
) -> None:
    """Only what the loader uses counts, whatever else ends alike."""
    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(8, 4)})
    model["head"] = torch.nn.Linear(4, 8, bias=False)
    model["head"].weight = model["embed"].weight
    embed, head = model["embed"].weight.detach(), torch.randn(8, 4)
    stored = {"text.embed.weight": embed.clone(), "draft.head.weight": torch.randn(8, 4)}
    stored["draft.embed.weight"] = stored["draft.head.weight"].clone()
    if other == "tower":
        stored["draft.head.weight"] = torch.randn(8, 4)
    if is_head_of_file:
        stored["text.head.weight"] = head
    tensorizer_ops.save(tmp_path / "m.tensors", stored)

    def load_weights(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            if name.startswith("text.head"):
                head.copy_(weight)  # and then it is lost
            elif name.startswith("text."):
                model.get_parameter(name.removeprefix("text.")).data.copy_(weight)

    found = attest(model, tmp_path / "m.tensors", load_weights=load_weights)
    assert bool(found.different) == is_head_of_file
    assert found.compared == ["embed.weight"]


def test_what_is_replaced_by_what_cannot_be_compared(tmp_path: Path) -> None:
    """Such as the raw values that a loader then computes with in place."""
    stored = torch.rand(8)
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": stored})
    model = torch.nn.Module()
    model.register_buffer("a", -torch.exp(stored))

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        model.a.copy_(of_file(weights))
        model.a.copy_(-torch.exp(model.a))

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    assert list(found.not_compared) == ["a"] and not found.different and not found.compared


def test_a_weight_whose_elements_are_in_the_same_memory(tmp_path: Path) -> None:
    """Such as one expert in the place of all: what is written last is that of each."""
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": torch.randn(4, 8)})
    model = torch.nn.Module()
    last = tensorizer_ops.load(tmp_path / "m.tensors")["a"][3:]
    model.a = torch.nn.Parameter(last.clone().expand(4, 8), requires_grad=False)

    def load_weights(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for own, row in zip(model.a.data, of_file(weights), strict=True):
            own.copy_(row)

    found = attest(model, tmp_path / "m.tensors", load_weights=load_weights)
    assert found.not_compared == {"a": "some of its elements are in the same memory"}
    assert not found.compared


@pytest.mark.parametrize(
    "make, is_known",
    [
        (lambda given: given[:, torch.arange(8) // 4], True),
        (lambda given: given.median(1).values, True),
        (lambda given: given[:1].expand(8, 8).median(1).values, False),
        (lambda given: resized(given.view(1, 1, 64, 1)), True),
        (lambda given: resized(given.view(1, 1, 1, 64).transpose(2, 3)), False),
        (lambda given: _resized_by(given.view(1, 1, 64, 1), None), True),
        (lambda given: _resized_by(given.view(1, 1, 64, 1), 0.5), False),
        (lambda given: resized(given.view(1, 64, 1, 1).float().permute(0, 3, 1, 2)), True),
    ],
)
def test_operations_that_read_beside_some_layouts(
    tmp_path: Path, make: Any, is_known: bool
) -> None:
    """What they make of these is made of what lies there, too."""
    stored = torch.randint(256, (8, 8), dtype=torch.uint8)
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": stored})
    model = torch.nn.Module()
    model.register_buffer("a", make(stored))

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        model.a.copy_(make(of_file(weights) + 0))

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    why = {"a": "what the loader copies to it is not made of the file alone"}
    assert found.not_compared == ({} if is_known else why)
    assert not found.different


@pytest.mark.parametrize("kind", ["attribute", "buffer", "parameter"])
def test_an_output_that_grows_in_the_memory_of_the_model(tmp_path: Path, kind: str) -> None:
    stored = {"a": torch.randn(8), "s": torch.randn(8)}
    tensorizer_ops.save(tmp_path / "m.tensors", stored)
    model = torch.nn.Module()
    model.register_buffer("a", stored["a"].clone())
    scale = torch.ones(8)
    if kind == "buffer":
        model.register_buffer("scale", scale)
    else:
        model.scale = torch.nn.Parameter(scale) if kind == "parameter" else scale

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        given = dict(weights)
        model.a.copy_(given["a"])
        torch.cat([given["s"][:4], given["s"][4:]], out=model.scale.detach()[:0])

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    assert "scale" in (found.different if kind == "attribute" else found.not_compared)
    assert not found.equal
    assert model.scale.equal(torch.ones(8))


def test_products_that_fill_nothing(tmp_path: Path) -> None:
    """With both factors zero, torch gives what the memory had before."""
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": torch.zeros(2, 8, 8).bfloat16()})
    model = torch.nn.Module()
    model.register_buffer("a", torch.zeros(2, 8, 8).bfloat16())

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        given = of_file(weights) + 0
        model.a.copy_(torch.baddbmm(given, given, given, beta=0, alpha=0))

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    assert found.not_compared == {"a": "what the loader copies to it is not made of the file alone"}


def _resized_by(image: torch.Tensor, scale: float | None) -> torch.Tensor:
    return torch.ops.aten._upsample_bilinear2d_aa(image, [7, 1], False, scale, scale)


def test_what_a_loader_reads_before_it_is_written_again(tmp_path: Path) -> None:
    stored = torch.randn(8, 8)
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": stored})
    model = torch.nn.ParameterDict({"one": stored.clone(), "two": stored.clone()})

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        model["one"].data.zero_()
        model["two"].data.copy_(model["one"].data)
        model["one"].data.copy_(of_file(weights))

    # The loader gives zeros to the second one.
    assert list(attest(model, tmp_path / "m.tensors", load_weights=load).different) == ["one"]


def test_a_write_that_a_subclass_changes(tmp_path: Path) -> None:
    stored = torch.randn(8, 8)
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": stored})
    model = torch.nn.ParameterDict({"a": stored.clone(), "b": stored.clone(), "c": stored / 2})

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        halved(model["a"].data).copy_(weight := of_file(weights))
        model["b"].data.copy_(weight)
        model["c"].data.copy_(halved(model["b"].data))

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    assert found.compared == ["b"] and found.not_compared == {
        "a": "the loader changes it by aten.copy_.default",
        "c": "what the loader copies to it is not made of the file alone",
    }
    assert torch.equal(model["a"].data, stored)


def through_wrapper(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    model.weight.data.copy_((TwoTensor(weight, weight) + 0).b)


def to_wrapper(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    TwoTensor(model.weight.data, model.weight.data).copy_(weight)


def with_constants(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    order = torch.cat([torch.arange(4), torch.tensor([4, 5, 6, 7])])
    model.weight.data.copy_(weight[order] * torch.full_like(model.weight, 2) / torch.tensor(2))


def staged(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    model.stage.copy_(weight)  # replaces all that was there
    model.weight.data.copy_(model.stage)


def looked_at(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    assert weight.numpy().any() and weight.tolist()
    model.weight.data[:4] = weight[:4]
    model.weight.data[4:] = weight[4:].clone()


def staged_in_parts(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    stages = [torch.empty(8, 8), weight.new_empty(8, 8), torch.empty_like(model.weight.data)]
    for stage in (*stages, model.stage, torch.nn.Linear(8, 8).weight.data):
        stage.narrow(0, 0, 4).copy_(weight[:4])
        model.weight.data[:4].copy_(stage[:4])
        stage[4:, ::2] = weight[4:, ::2]
        stage[4:, 1::2].copy_(weight[4:, 1::2])
        model.weight.data.copy_(stage)


@torch.library.custom_op("attest_test::pack", mutates_args=["packed"])
def pack(weight: torch.Tensor, packed: torch.Tensor) -> None:
    packed.copy_(weight)


def packed_by_custom_op(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    packed = torch.empty_like(model.weight)
    pack(weight + 0, packed)
    model.weight.data.copy_(packed)


def into_outputs(weight: torch.Tensor, model: torch.nn.Linear) -> None:
    stage = torch.empty(8, 8)
    torch.cat([torch.empty(0), weight[:4], weight[4:]], out=stage)
    model.weight.data[:4].copy_(torch.stack(list(stage.unbind()))[:4])
    torch.mul(weight, 1, out=stage[:])
    model.weight.data[4:].copy_(stage[4:])


@pytest.mark.parametrize(
    "load",
    [
        through_wrapper,
        to_wrapper,
        with_constants,
        staged,
        staged_in_parts,
        into_outputs,
        packed_by_custom_op,
        looked_at,
    ],
)
def test_what_is_made_of_the_file_alone(tmp_path: Path, load: Any) -> None:
    stored = torch.randn(8, 8)
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": stored})
    model = torch.nn.Linear(8, 8, bias=False)
    model.stage = stored.clone()  # as a load leaves it

    def load_weights(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        load(of_file(weights), model)

    for place in (None, 5):
        model.weight.data.copy_(stored)
        if place is not None:
            flip(model.weight, place * 4)
        before = model.weight.detach().clone()
        found = attest(model, tmp_path / "m.tensors", load_weights=load_weights)
        assert found.equal == (place is None) and not found.not_compared
        assert list(found.different) == ["weight"] * (place is not None)
        assert same(model.weight.data, before)


def test_many_operations_take_no_memory(tmp_path: Path) -> None:
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": torch.ones(8, 8)})
    model = torch.nn.Linear(8, 8, bias=False)
    torch.nn.init.ones_(model.weight)

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        weight = of_file(weights)
        for _ in range(3000):
            made = weight * 1
        model.weight.data.copy_(made)
        (watch,) = _get_current_dispatch_mode_stack()
        assert len(watch._origins._storages) < 1500

    assert attest(model, tmp_path / "m.tensors", load_weights=load).equal


def by_numpy(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    model.weight.detach().numpy()[:] = weight.numpy()
    model.weight.data.copy_(weight)


def by_thread(model: torch.nn.Linear, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    weight = of_file(weights)
    thread = threading.Thread(target=lambda: model.weight.data.copy_(weight))
    thread.start()
    thread.join()
    model.weight.data.copy_(weight)


@pytest.mark.parametrize("load", [by_numpy, by_thread])
def test_a_model_that_changes_meanwhile(tmp_path: Path, load: Any) -> None:
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": torch.randn(8, 8)})
    model = torch.nn.Linear(8, 8, bias=False)
    found = attest(model, tmp_path / "m.tensors", load_weights=lambda weights: load(model, weights))
    assert not found.compared and "it has changed meanwhile" in found.not_compared["weight"]


def test_loaders_that_copy_from_other_tensors_of_the_model(tmp_path: Path) -> None:
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": torch.randn(8, 8)})

    class Model(torch.nn.Module):
        def __init__(self, *names: str) -> None:
            super().__init__()
            for name in names:
                value = tensorizer_ops.load(tmp_path / "m.tensors")["a"].clone()
                self.register_parameter(name, torch.nn.Parameter(value))

        def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
            own = dict(self.named_parameters())
            own["one"].data.copy_(dict(weights)["a"])
            own["two"].data.copy_(own["one"].data)
            own["three"].data.copy_(own["four"].data)
            own["four"].data.copy_(own["three"].data)
            # empty_like() takes the shape of a tensor, and none of its elements.
            made = torch.empty_like(own["five"])
            made.copy_(own["one"].data)
            own["five"].data.copy_(own["one"].data)

    model = Model("one", "two", "three", "four", "five")
    found = attest(model, tmp_path / "m.tensors", load_weights=model.load_weights)
    assert found.compared == ["one", "two", "five"]
    assert list(found.not_compared) == ["three", "four"]
    flip(dict(model.named_parameters())["two"], 5)
    found = attest(model, tmp_path / "m.tensors", load_weights=model.load_weights)
    assert list(found.different) == ["two"]


def test_memory_beside_that_of_a_parameter(tmp_path: Path) -> None:
    tensorizer_ops.save(tmp_path / "m.tensors", {"one": torch.zeros(8)})
    memory = torch.cat([torch.zeros(8), torch.ones(8)])
    model = torch.nn.ParameterDict({"one": memory[:8], "two": memory.clone(), "part": memory[2:6]})

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        model["one"].data.copy_(of_file(weights, "one"))
        model["two"].data.copy_(memory)

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    assert found.compared == ["one", "part"] and list(found.not_compared) == ["two"]


def test_a_part_of_a_parameter_that_no_state_dict_has(tmp_path: Path) -> None:
    model = torch.nn.ParameterDict({"a": torch.randn(8), "hidden": torch.randn(8)})
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": model["a"]})
    model["hidden"].data[:4] = model["a"].data[:4]

    def forget(module: Any, state: dict[str, torch.Tensor], prefix: str, local: Any) -> None:
        del state["hidden"]

    model.register_state_dict_post_hook(forget)

    def load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        weight = of_file(weights)
        model["a"].data.copy_(weight)
        model["hidden"].data[:4] = weight[:4]

    found = attest(model, tmp_path / "m.tensors", load_weights=load)
    assert found.not_compared == {"hidden": "4 of its elements are from no file"}
    assert found.compared == ["a"]
