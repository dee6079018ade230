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
from tensorizer_ops import checkpoint, errors

KEY = "tensorizer_ops.checkpoint"


def there_and_back(path: Path, state: Any) -> Any:
    checkpoint.save(path, state)
    return checkpoint.load(path, verify="all")


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
        checkpoint.save(tmp_path / "c.tensors", state)
    assert not list(tmp_path.iterdir())


def test_tensors_without_values(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"state\['w'\]\[0\] is on the meta device"):
        checkpoint.save(tmp_path / "c.tensors", {"w": [torch.ones(2, device="meta")]})


def test_a_state_that_holds_itself(tmp_path: Path) -> None:
    state: dict[str, Any] = {}
    state["self"] = state
    with pytest.raises(ValueError, match="holds itself"):
        checkpoint.save(tmp_path / "c.tensors", state)


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
        checkpoint.load(path)
    said = str(caught.value).partition("is damaged: ")[2]
    assert re.match(r"it |torch has no|no save writes such$", said)
    assert time.process_time() - begin < 5


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "c.tensors"
    tensorizer_ops.save(path, {"a": torch.ones(1)})
    with pytest.raises(errors.InvalidFormat, match="no nested state"):
        checkpoint.load(path)
    with pytest.raises(ValueError, match="holds the state"):
        checkpoint.save(path, {}, metadata={KEY: ""})


def test_other_texts_and_other_readers(tmp_path: Path) -> None:
    path = tmp_path / "c.tensors"
    checkpoint.save(path, {"model": {"w": torch.ones(2)}, "step": 7}, metadata={"by": "me"})
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
    save = checkpoint.save_async(tmp_path / "c.tensors", state)
    state["w"].zero_()
    save.result()
    assert checkpoint.load(tmp_path / "c.tensors")["w"].tolist() == [1, 1, 1]
    file = io.BytesIO()
    checkpoint.save(file, state)
    file.seek(0)
    assert checkpoint.load(file)["w"].tolist() == [0, 0, 0]


def test_a_state_is_filled_from_a_file(tmp_path: Path) -> None:
    """As torch's ``load`` fills it from a folder: tensors in place, other values replaced."""
    path = tmp_path / "c.tensors"
    tied = torch.arange(4.0)
    saved = {
        "weights": {"a": tied, "b": tied, "cast": torch.arange(3.0), "view": torch.ones(2, 3)},
        "list": [torch.ones(2), {"x": 1}],
        "plain": [1, [2]],
        "pair": (torch.ones(1), 2),
        7: {8: "eight"},
        "unread": torch.ones(5),
    }
    checkpoint.save(path, saved)
    weights = {
        "a": torch.zeros(4),
        "b": torch.zeros(4),
        "cast": torch.zeros(3, dtype=torch.float64),
        "view": torch.zeros(3, 2).t(),
    }
    state: dict[Any, Any] = {
        "weights": dict(weights),
        "list": [torch.zeros(2), {"x": 0}],
        "plain": None,
        "pair": None,
        7: {8: ""},
    }
    for source in (path, io.BytesIO(path.read_bytes())):
        for tensor in weights.values():
            tensor.zero_()
        assert checkpoint.load(source, state, verify="all") is state
        assert all(state["weights"][name] is tensor for name, tensor in weights.items())
        assert_same(
            {name: tensor.float().contiguous() for name, tensor in weights.items()},
            saved["weights"],
        )
        assert state["list"][0].tolist() == [1, 1] and state["list"][1] == {"x": 1}
        assert state["plain"] == [1, [2]] and state[7] == {8: "eight"}
        assert state["pair"][0].tolist() == [1] and state["pair"][1] == 2
        assert "unread" not in state
    with pytest.raises(RuntimeError, match="Missing key in checkpoint state_dict: other"):
        checkpoint.load(path, {"other": 1})
    with pytest.raises(ValueError, match="Size mismatch"):
        checkpoint.load(path, {"weights": {"a": torch.ones(5)}})


def test_modules_and_optimizers_are_values(tmp_path: Path) -> None:
    def parts() -> dict[str, Any]:
        model = torch.nn.Linear(3, 2)
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "step": 0}

    def step(given: dict[str, Any]) -> None:
        given["model"](torch.ones(1, 3)).sum().backward()
        given["optimizer"].step()
        given["step"] += 1

    first, second = parts(), parts()
    step(first)
    path = tmp_path / "c.tensors"
    checkpoint.save(path, first)
    # Torch's load would leave the moments as they are, and say nothing.
    with pytest.raises(ValueError, match=r"nothing in 'optimizer.state'.*before its first step"):
        checkpoint.load(path, second)
    step(second)
    checkpoint.load(path, second)
    assert second["step"] == 1
    assert_same(second["model"].state_dict(), dict(first["model"].state_dict()))
    moments = [each["optimizer"].state_dict()["state"][0] for each in (first, second)]
    assert_same(moments[1], moments[0])


def test_arguments_that_have_no_meaning_together(tmp_path: Path) -> None:
    path = tmp_path / "c.tensors"
    checkpoint.save(path, {"w": torch.ones(2)})
    with pytest.raises(ValueError, match="device is for loads without a state"):
        checkpoint.load(path, {"w": torch.ones(2)}, device="cpu")
    with pytest.raises(TypeError, match=r"uri is dict.*the order is save\(uri, state\)"):
        checkpoint.save({"w": torch.ones(2)}, path)  # type: ignore[arg-type]
