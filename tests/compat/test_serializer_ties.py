"""Tied tensors in TensorSerializer and TensorDeserializer, with the option `share`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorizer
import torch

import tensorizer_ops
from support.process import feed
from support.raw_parse import parse
from support.samples import same, sample
from tensorizer_ops import TensorDeserializer, TensorSerializer


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = torch.nn.Linear(6, 4, bias=False)
        self.w = self.child.weight
        self.register_buffer("b", sample(torch.int64, (7,)))


@pytest.fixture
def model() -> Tied:
    torch.manual_seed(0)
    return Tied()


@pytest.fixture
def shared(path: str, model: Tied) -> str:
    with TensorSerializer(path, options={"share": True}) as serializer:
        serializer.write_module(model)
    return path


def memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_a_module_is_written_once(shared: str, model: Tied) -> None:
    stored = parse(Path(shared).read_bytes())
    assert sorted(entry.name for entry in stored.entries) == [b".b", b".w"]
    with tensorizer.TensorDeserializer(shared, device="cpu", verify_hash=True) as classic:
        assert sorted(classic) == [".b", ".w"]
    with TensorDeserializer(shared, "cpu", verify_hash=True) as ours:
        assert sorted(ours) == [".b", ".w", "child.weight"]
        assert same(ours["w"], model.w)
        assert same(ours["child.weight"], model.w)
        assert memory(ours["w"]) == memory(ours["child.weight"])
        assert ours.total_file_bytes == ours.total_tensor_bytes == model.w.nbytes + model.b.nbytes
        assert ours.verify_module(model) == (
            True,
            [(name, True) for name in [*ours]],
        )
        state = ours.state_dict()
    assert sorted(state) == ["b", "child.weight", "w"]


@pytest.mark.parametrize("lazy", [False, True])
def test_one_by_one(shared: str, model: Tied, lazy: bool) -> None:
    with (
        tensorizer.TensorDeserializer(shared, device="cpu", lazy_load=True) as classic,
        TensorDeserializer(shared, "cpu", lazy_load=lazy) as ours,
    ):
        known = {name: (index, kind) for index, kind, name, _ in classic.read_tensors()}
        found = {name: (index, kind, tensor) for index, kind, name, tensor in ours.read_tensors()}
        assert {name: (index, kind) for name, (index, kind, _) in found.items()} == {
            **known,
            "child.weight": (1, known[".w"][1]),
        }
        assert same(found["child.weight"][2], model.w)
        assert same(ours["child.weight"], model.w)
        arrays = {name: array for _, _, name, array, *_ in ours.read_numpy_arrays()}
        assert torch.equal(torch.from_numpy(arrays["child.weight"]), model.w)


def test_a_filter_may_keep_the_second_name_only(shared: str, model: Tied) -> None:
    with TensorDeserializer(shared, "cpu", filter_func=lambda name: "child" in name) as ours:
        assert same(ours["child.weight"], model.w)
        assert list(ours) == ["child.weight"]


def test_streams(shared: str, model: Tied) -> None:
    with feed(shared + ".fifo", Path(shared).read_bytes()), open(shared + ".fifo", "rb") as file:
        ours = TensorDeserializer(file, "cpu", verify_hash=True)
        assert same(ours["child.weight"], model.w)


@pytest.mark.parametrize("verify", [False, True])
def test_streams_one_by_one(tmp_path: Path, verify: bool) -> None:
    """The data of a tied tensor passes once, and serves all of its names."""
    tied = sample(torch.float32, (300, 500))
    state = {"a": tied, "b": sample(torch.int64, (7,)), "c": tied, "d": torch.ones(3), "e": tied}
    path = str(tmp_path / "m.tensors")
    tensorizer_ops.save(path, state, options={"share": "true"})
    data = Path(path).read_bytes()
    for order in ("abcde", "ca", "bed", "acdb"):
        with (
            feed(path + ".fifo", data),
            TensorDeserializer(path + ".fifo", "cpu", lazy_load=True, verify_hash=verify) as ours,
        ):
            for name in order:
                if (order, name) in (("bed", "e"), ("acdb", "b")):
                    with pytest.raises(ValueError, match="can be read only once"):
                        ours[name]
                else:
                    assert same(ours[name], state[name])
            if order == "abcde":
                assert memory(ours["a"]) == memory(ours["c"]) == memory(ours["e"])
        Path(path + ".fifo").unlink()
    with (
        feed(path + ".fifo", data),
        TensorDeserializer(path + ".fifo", "cpu", lazy_load=True) as ours,
    ):
        found = {name: tensor for _, _, name, tensor in ours.read_tensors()}
    assert list(found) == list(state)
    assert all(same(found[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_modules_keep_their_own_ties(shared: str, model: Tied, device: str) -> None:
    target = Tied().to(device)
    target.w = target.child.weight
    with TensorDeserializer(shared, "cpu") as ours:
        assert ours.load_into_module(target) == 3
    assert target.w is target.child.weight
    assert same(target.w, model.w)
    separate = Tied()
    separate.w = torch.nn.Parameter(torch.zeros(4, 6))
    separate = separate.to(device)
    with TensorDeserializer(shared, "cpu") as ours:
        ours.load_into_module(separate)
    assert same(separate.w, model.w)
    assert same(separate.child.weight, model.w)
    assert memory(separate.w) != memory(separate.child.weight)
    assert separate.w.requires_grad


def test_nested_names(path: str) -> None:
    weight = sample(torch.float32, (3, 5))
    tree: dict[str, Any] = {"a": weight, "layers": [{"w": weight}, {"w": weight[:]}]}
    with TensorSerializer(path, options={"share": True}) as serializer:
        serializer.write_state_dict(tree)
    assert len(parse(Path(path).read_bytes()).entries) == 1
    with TensorDeserializer(path, "cpu") as ours:
        found = ours.tree()
    assert same(found["layers"][1]["w"], weight)
    assert memory(found["layers"][0]["w"]) == memory(found["a"])


def test_files_in_redis(shared: str, model: Tied, redis: Any) -> None:
    with redis.client() as client, TensorDeserializer(shared, "cpu", lazy_load=True) as ours:
        ours.to_redis(client, "m")
    with TensorDeserializer(redis.url("m"), "cpu", verify_hash=True) as loaded:
        assert same(loaded["w"], model.w)
        assert same(loaded["child.weight"], model.w)
