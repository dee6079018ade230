"""tensorizer_ops.load_into fills a dict of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.samples import assert_same, same, zoo
from support.tied import SHARE, WEIGHT, tied
from tensorizer_ops import errors

KEY = {"key": "named:of load_into"}


@pytest.fixture(autouse=True)
def key() -> None:
    tensorizer_ops.keys.add("of load_into", key=bytes(range(32)))


@pytest.fixture
def saved(path: str) -> str:
    tensorizer_ops.save(path, {"x": torch.arange(6.0).view(2, 3), "n": torch.arange(4)})
    return path


def test_tensors_are_filled_in_place(path: str) -> None:
    tensorizer_ops.save(path, zoo())
    out = {name: torch.zeros_like(tensor) for name, tensor in reversed(zoo().items())}
    before = dict(out)
    tensorizer_ops.load_into(out, path, verify="all")
    assert_same(out, {name: zoo()[name] for name in out})
    assert all(out[name] is before[name] for name in before)


def test_views_share_what_is_filled(saved: str) -> None:
    table = torch.zeros(3, 2)
    tensorizer_ops.load_into({"x": table.t(), "n": torch.zeros(4, dtype=torch.int64)}, saved)
    assert table.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_tensors_without_memory_are_replaced_in_the_dict(saved: str) -> None:
    with torch.device("meta"):
        shared = torch.empty(2, 3)
        weight = torch.nn.Parameter(torch.empty(4, dtype=torch.int64), requires_grad=False)
    out = {"x": shared, "n": weight}
    tensorizer_ops.load_into(out, saved)
    assert shared.is_meta
    assert out["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert isinstance(out["n"], torch.nn.Parameter)
    assert out["n"].tolist() == [0, 1, 2, 3]


def test_types_are_cast_when_told_to(saved: str) -> None:
    out = {"x": torch.zeros(2, 3, dtype=torch.float16), "n": torch.zeros(4, dtype=torch.int64)}
    with pytest.raises(ValueError, match="cast=True"):
        tensorizer_ops.load_into(out, saved)
    tensorizer_ops.load_into(out, saved, cast=True)
    assert out["x"].dtype == torch.float16
    tensorizer_ops.load_into(out, saved, dtype=torch.float64)
    assert out["x"].dtype == torch.float64
    assert out["x"].sum() == 15


def test_the_dict_is_unchanged_if_it_does_not_fit(saved: str) -> None:
    out = {"x": torch.zeros(2, 3, device="meta"), "y": torch.zeros(4)}
    before = dict(out)
    with pytest.raises(errors.InvalidArgument, match=r"missing in the file: 'y'\s+only .*: 'n'"):
        tensorizer_ops.load_into(out, saved)
    assert all(out[name] is before[name] for name in before)
    tensorizer_ops.load_into(out, saved, strict=False)
    assert out["x"].sum() == 15
    assert out["y"].sum() == 0


def test_what_is_no_tensor_is_refused(saved: str) -> None:
    other: Any
    for other, words in (
        ({"x": 7}, r"module\['x'\] is int"),
        ({7: torch.ones(1)}, "module has a name that is int"),
        ([torch.ones(1)], "is list"),
        (None, "is None"),
    ):
        with pytest.raises(TypeError, match=words):
            tensorizer_ops.load_into(other, saved)


# ---- names of one tensor


def test_names_of_one_tensor_need_the_same_shape(path: str) -> None:
    tensorizer_ops.save(path, {"a": torch.ones(2, 3), "b": torch.ones(3)})
    one = torch.zeros(2, 3)
    with pytest.raises(errors.InvalidArgument, match=r"different: 'b' \(.*3.* in the file, .*here"):
        tensorizer_ops.load_into({"a": one, "b": one}, path)
    assert not one.any()


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_names_of_one_tensor_need_the_same_data(
    path: str, device: str, strict: bool, dtype: torch.dtype | None
) -> None:
    one = torch.zeros(2, 3, device=device)
    other = torch.tensor([[1.0, 1, 1], [1, 1, 2]])
    tensorizer_ops.save(path, {"a": torch.ones(2, 3), "b": other, "c": torch.ones(2, 3)})
    out = {"a": one, "b": one, "c": one}
    with pytest.raises(errors.InvalidArgument, match=r"one tensor here: 'a' and 'b'$"):
        tensorizer_ops.load_into(out, path, strict=strict, dtype=dtype)
    assert all(tensor is one for tensor in out.values())
    del out["b"]
    tensorizer_ops.load_into(out, path, strict=False, dtype=dtype)
    assert out["a"] is out["c"]
    assert torch.equal(out["a"].float(), torch.ones(2, 3))


def test_names_of_one_tensor_are_compared_bit_by_bit(path: str) -> None:
    nan = torch.tensor([float("nan"), 1 - 2j, -0.0], dtype=torch.complex64)
    tensorizer_ops.save(path, {"a": nan, "b": nan})
    mirrored = torch.zeros(6, dtype=torch.complex64)[::2].conj()
    tensorizer_ops.load_into({"a": mirrored, "b": mirrored}, path)
    assert same(mirrored.resolve_conj(), nan)
    tensorizer_ops.save(path, {"a": torch.tensor(0.0), "b": torch.tensor(-0.0)})
    one = torch.ones(())
    with pytest.raises(errors.InvalidArgument, match="'a' and 'b'"):
        tensorizer_ops.load_into({"a": one, "b": one}, path)


def test_names_that_the_file_ties_are_read_once(path: str) -> None:
    tensorizer_ops.save(path, tied(), options=SHARE)
    one = torch.zeros_like(WEIGHT)
    with tensorizer_ops.Reader(path) as reader:
        reader.load_into({"w": one, "w.2": one, "w.3": one}, strict=False)
        assert reader.stats()["bytes"] == WEIGHT.nbytes
    assert same(one, WEIGHT)


# ---- tensors that share some of their memory

LONG = torch.arange(300_000.0)
OVERLAPS: dict[str, Any] = {
    "part": lambda x: x[100_000:200_000],
    "matrix": lambda x: x.view(300, 1000),
    "transposed": lambda x: x.view(300, 1000).t(),
    "every second": lambda x: x[::2],
    "bits": lambda x: x.view(torch.int32),
}


@pytest.mark.parametrize("view", OVERLAPS.values(), ids=OVERLAPS)
@pytest.mark.parametrize("encrypted", [False, True])
def test_views_are_filled_with_what_they_view(path: str, view: Any, encrypted: bool) -> None:
    options = KEY if encrypted else None
    tensorizer_ops.save(path, {"x": LONG, "v": view(LONG)}, options=options)
    for verify in ("none", "all"):
        out = torch.zeros_like(LONG)
        tensorizer_ops.load_into({"v": view(out), "x": out}, path, verify=verify, options=options)
        assert same(out, LONG)


@pytest.mark.parametrize("view", OVERLAPS.values(), ids=OVERLAPS)
def test_views_with_other_data_are_refused(path: str, view: Any) -> None:
    tensorizer_ops.save(path, {"x": LONG, "v": view(LONG.clone()) + 1})
    out = torch.zeros_like(LONG)
    with pytest.raises(errors.InvalidArgument, match="overlaps that of a tensor with different"):
        tensorizer_ops.load_into({"x": out, "v": view(out)}, path, verify="all")


@pytest.mark.parametrize("encrypted", [False, True])
def test_views_are_zero_after_a_load_that_is_not_right(path: str, encrypted: bool) -> None:
    options = KEY if encrypted else None
    tensorizer_ops.save(path, {"x": LONG, "v": LONG[9:] + 1}, options=options)
    verify: Any = "none" if encrypted else "all"
    for error in (errors.InvalidArgument, (errors.HashMismatch, errors.Crypto)):
        out = torch.ones_like(LONG)
        with pytest.raises(error):
            tensorizer_ops.load_into({"x": out, "v": out[9:]}, path, verify=verify, options=options)
        assert not out.any()
        damage(path)


def damage(path: str) -> None:
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 4] ^= 1
    Path(path).write_bytes(data)


def test_views_beside_each_other_are_filled_in_place(path: str) -> None:
    tensorizer_ops.save(path, {"even": LONG[::2], "odd": LONG[1::2], "rest": LONG})
    out = torch.zeros(2 * len(LONG))
    with tensorizer_ops.Reader(path) as reader:
        reader.load_into(
            {"even": out[: len(LONG) : 2], "odd": out[1 : len(LONG) : 2]}, strict=False
        )
        reader.load_into({"rest": out[len(LONG) :]}, strict=False)
    assert same(out, LONG.repeat(2))


def test_elements_that_overlap_need_the_same_data(path: str) -> None:
    windows = torch.arange(9.0).unfold(0, 4, 1)
    out = torch.zeros(9)
    for x in (windows, windows * 2):
        tensorizer_ops.save(path, {"x": x})
        torch.ops.tensorizer.load_into(path, ["x"], [out.unfold(0, 4, 1)])
        assert same(out.unfold(0, 4, 1), x)
    tensorizer_ops.save(path, {"x": torch.rand(6, 4)})
    with pytest.raises(errors.InvalidArgument, match="overlaps"):
        torch.ops.tensorizer.load_into(path, ["x"], [out.unfold(0, 4, 1)])
