"""Nested states: saved and loaded without pickle."""

from __future__ import annotations

import io
import json
import re
import time
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

import tensorizer_ops
from support.samples import assert_same
from tensorizer_ops import errors
from tensorizer_ops.checkpoint import load_checkpoint, save_checkpoint, save_checkpoint_async

KEY = "tensorizer_ops.checkpoint"


def there_and_back(path: Path, state: Any) -> Any:
    save_checkpoint(path, state)
    return load_checkpoint(path, verify="all")


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -(2**70), 1.5, 1e-300, float("inf"), -float("inf"), "text", "ü\0\ud800"),
        *(b"\0\xff", 2 - 3j, torch.float8_e4m3fn, torch.device("cuda:1"), torch.Size([2, 0])),
        *([], (), {}, [1, [2, (3,)]], ((), [()], {}), {"a": {"b": []}}),
        *({1: "one", 1.5: 0, None: 1, (1, "a"): 2, "x": 3, b"k": 4, -1: 5},),
    ],
    ids=repr,
)
def test_values_keep_their_type(tmp_path: Path, value: Any) -> None:
    found = there_and_back(tmp_path / "c.tensors", {"value": value})["value"]
    assert found == value and repr(found) == repr(value)


def test_a_number_that_is_none_and_an_order(tmp_path: Path) -> None:
    state = {"nan": float("nan"), "ordered": OrderedDict(b=1, a=2)}
    found = there_and_back(tmp_path / "c.safetensors", state)
    assert found["nan"] != found["nan"]
    assert found["ordered"] == state["ordered"] and type(found["ordered"]) is OrderedDict


def test_values_of_other_libraries(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4, 4])
    state = {
        "scheduler": scheduler.state_dict(),
        "numpy": [numpy.float32(0.1), numpy.int64(7), numpy.bool_(True)],
    }
    found = there_and_back(tmp_path / "c.tensors", state)
    assert found["scheduler"] == state["scheduler"]
    assert type(found["scheduler"]["milestones"]) is Counter
    assert found["numpy"] == [float(numpy.float32(0.1)), 7, True]
    assert [type(value) for value in found["numpy"]] == [float, int, bool]


OPTIMIZERS = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and name not in ("Optimizer", "Muon")  # of two dimensions only
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_without_a_checkpoint(tmp_path: Path, name: str) -> None:
    sparse = name == "SparseAdam"

    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
        torch.manual_seed(1)
        model: torch.nn.Module = (
            torch.nn.Embedding(5, 3, sparse=True) if sparse else torch.nn.Linear(5, 3)
        )
        optimizer = OPTIMIZERS[name](list(model.parameters()), lr=0.01)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def train(parts: tuple[torch.nn.Module, torch.optim.Optimizer, Any]) -> None:
        model, optimizer, scheduler = parts
        given = torch.arange(5) if sparse else torch.ones(2, 5)

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            result: torch.Tensor = model(given).square().mean()
            result.backward()
            return result

        for _ in range(3):
            optimizer.step(loss)
            scheduler.step()

    first = make()
    train(first)
    names = ("model", "optimizer", "scheduler")
    state = {key: part.state_dict() for key, part in zip(names, first, strict=True)} | {"epoch": 3}
    found = there_and_back(tmp_path / "c.tensors", state)
    second = make()
    for key, part in zip(names, second, strict=True):
        part.load_state_dict(found[key])
    train(first)
    train(second)
    assert found["epoch"] == 3
    assert_same(second[0].state_dict(), dict(first[0].state_dict()))


def test_a_tensor_that_is_there_twice_is_saved_once(tmp_path: Path) -> None:
    tied = torch.nn.Linear(4, 4)
    state = {"a": tied.state_dict(), "b": [tied.weight], "a.weight": torch.ones(1)}
    found = there_and_back(tmp_path / "c.tensors", state)
    assert found["a"]["weight"] is found["b"][0]
    assert tensorizer_ops.names(tmp_path / "c.tensors") == [
        *("a.weight", "a.bias", "a.weight (2)"),
    ]
    assert_same({"x": found["a.weight"]}, {"x": torch.ones(1)})


def test_wrappers_of_other_tensors_are_not_the_same(tmp_path: Path) -> None:
    # All tensors that wrap another one have the address 0.
    plain = {"a": torch.ones(2, 3), "b": torch.zeros(2, 3)}
    state = {name: AsyncCollectiveTensor(tensor) for name, tensor in plain.items()}
    assert_same(there_and_back(tmp_path / "c.tensors", state), plain)


class Unknown:
    pass


@pytest.mark.parametrize(
    ("state", "kind", "text"),
    [
        ({"a": [1, Unknown()]}, TypeError, r"state\['a'\]\[1\] is .*Unknown, which only pickle"),
        ({"f": print}, TypeError, r"state\['f'\] is builtins.builtin_function_or_method"),
        ({"s": {1, 2}}, TypeError, "builtins.set"),
        ([], TypeError, "state is list, and must be a dict"),
        ({"n": [10**5000]}, ValueError, r"state\['n'\]\[0\] is an integer of 16610 bits"),
    ],
    ids=["object", "function", "set", "list", "integer"],
)
def test_what_would_need_pickle(
    tmp_path: Path, state: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        save_checkpoint(tmp_path / "c.tensors", state)
    assert not list(tmp_path.iterdir())


def test_tensors_without_values(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"state\['w'\]\[0\] is on the meta device"):
        save_checkpoint(tmp_path / "c.tensors", {"w": [torch.ones(2, device="meta")]})


def test_a_state_that_holds_itself(tmp_path: Path) -> None:
    state: dict[str, Any] = {}
    state["self"] = state
    with pytest.raises(ValueError, match="holds itself"):
        save_checkpoint(tmp_path / "c.tensors", state)


DAMAGED = [
    *("", "{", "[" * 100_000, "9" * 5000, '{"dict": 1}', '{"dict": [[[], 1]]}', '{"tensor": "b"}'),
    *('{"os": "system"}', '{"dtype": "load"}', '{"device": "nowhere"}', '{"a": 1, "b": 2}', "{}"),
    *('{"bytes": "?"}', '{"complex": ["a"]}', '{"float": "many"}', '{"size": ["a"]}'),
    *('{"float": 1' + "0" * 400 + "}", '{"complex": [1' + "0" * 400 + ", 1]}", '{"tuple": "ab"}'),
    *('{"dict": ["ab"]}', '{"counter": [[1, 2, 3]]}'),
    '{"tuple": ' * 900 + "[]" + "}" * 900,
    # Its keys have the same hash: this would take 15 seconds.
    json.dumps({"dict": [[i * (2**61 - 1), 0] for i in range(40_000)]}),
]


@pytest.mark.parametrize("text", DAMAGED, ids=[text[:20] for text in DAMAGED])
def test_texts_of_strangers(tmp_path: Path, text: str) -> None:
    begin = time.process_time()
    path = tmp_path / "c.tensors"
    tensorizer_ops.save(path, {"a": torch.ones(1)}, metadata={KEY: text})
    with pytest.raises(
        errors.InvalidFormat, match=r"c\.tensors': the nested state is damaged"
    ) as caught:
        load_checkpoint(path)
    said = str(caught.value).partition("is damaged: ")[2]
    assert re.match(r"it |torch has no|no save writes such$", said)
    assert time.process_time() - begin < 5


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "c.tensors"
    tensorizer_ops.save(path, {"a": torch.ones(1)})
    with pytest.raises(errors.InvalidFormat, match="no nested state"):
        load_checkpoint(path)
    with pytest.raises(ValueError, match="holds the state"):
        save_checkpoint(path, {}, metadata={KEY: ""})


def test_other_texts_and_other_readers(tmp_path: Path) -> None:
    path = tmp_path / "c.tensors"
    save_checkpoint(path, {"model": {"w": torch.ones(2)}, "step": 7}, metadata={"by": "me"})
    assert tensorizer_ops.metadata(path)["by"] == "me"
    assert json.loads(tensorizer_ops.metadata(path)[KEY])["dict"][1] == ["step", 7]
    assert_same(tensorizer_ops.load(path), {"model.w": torch.ones(2)})


def test_many_parameters(tmp_path: Path) -> None:
    """Their texts are long, and neither format has a limit that a checkpoint reaches."""
    state = {
        "state": {i: {"step": torch.tensor(1.0), "exp_avg": torch.ones(2)} for i in range(9999)}
    }
    for name in ("c.tensors", "c.safetensors"):
        found = there_and_back(tmp_path / name, state)
        assert list(found["state"]) == list(range(9999))
        assert found["state"][9998]["exp_avg"].tolist() == [1, 1]


def test_in_the_background_and_in_memory(tmp_path: Path) -> None:
    state = {"w": torch.ones(3), "epoch": 1}
    save = save_checkpoint_async(tmp_path / "c.tensors", state)
    state["w"].zero_()
    save.result()
    assert load_checkpoint(tmp_path / "c.tensors")["w"].tolist() == [1, 1, 1]
    file = io.BytesIO()
    save_checkpoint(file, state)
    file.seek(0)
    assert load_checkpoint(file)["w"].tolist() == [0, 0, 0]
