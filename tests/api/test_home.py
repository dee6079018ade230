"""A leading ~ is the home directory, in every form of a path and for every function."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.samples import same
from tensorizer_ops import checkpoint, safetensors

TENSORS = {"w": torch.arange(4.0)}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def write(target: Any) -> None:
    with tensorizer_ops.Writer(target) as writer:
        writer["w"] = TENSORS["w"]


SAVES: dict[str, Callable[[Any], Any]] = {
    "save": lambda target: tensorizer_ops.save(target, TENSORS),
    "save_async": lambda target: tensorizer_ops.save_async(target, TENSORS).result(),
    "Writer": write,
    "save_file": lambda target: safetensors.save_file(TENSORS, target),
    "checkpoint.save": lambda target: checkpoint.save(target, TENSORS),
}


@pytest.mark.parametrize("form", [str, Path, os.fsencode])
@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
def test_home(home: Path, save: Callable[[Any], Any], form: Callable[[str], Any]) -> None:
    place = form("~/m")
    save(place)
    assert os.listdir(home) == ["m"]
    assert os.listdir(home.parent) == ["home"]
    assert same(tensorizer_ops.load(place, names=["w"])["w"], TENSORS["w"])
    assert tensorizer_ops.names(place) == tensorizer_ops.names(home / "m")
    with tensorizer_ops.Reader(place) as reader:
        assert same(reader["w"], TENSORS["w"])
    tensorizer_ops.convert(place, form("~/copy"))
    assert sorted(os.listdir(home)) == ["copy", "m"]


@pytest.mark.parametrize("form", [str, Path, os.fsencode])
def test_names_that_are_not_unicode(home: Path, form: Callable[[str], Any]) -> None:
    place = form("~/caf\udce9")
    tensorizer_ops.save(place, TENSORS)
    assert os.listdir(os.fsencode(home)) == [b"caf\xe9"]
    assert same(tensorizer_ops.load(place)["w"], TENSORS["w"])


def test_script_and_folder(home: Path) -> None:
    scripted = torch.jit.script(torch.nn.Linear(1, 1))
    code = tensorizer_ops.externalize(scripted, Path("~/w.tensors"), Path("~/code.pt"))
    assert code == str(home / "code.pt")
    tensorizer_ops.load_into(torch.jit.load(code), Path("~/w.tensors"))
    (home / "folder").mkdir()
    tensorizer_ops.save(Path("~/folder/model.safetensors"), TENSORS)
    assert same(tensorizer_ops.load(Path("~/folder"))["w"], TENSORS["w"])


@pytest.mark.parametrize("form", [str, Path, os.fsencode])
def test_the_api_of_tensorizer_takes_it_literally(home: Path, form: Callable[[str], Any]) -> None:
    (home.parent / "~").mkdir()
    serializer = tensorizer_ops.TensorSerializer(form("~/m.tensors"))
    serializer.write_state_dict(TENSORS)
    serializer.close()
    assert os.listdir(home) == []
    with tensorizer_ops.TensorDeserializer(form("~/m.tensors")) as deserializer:
        assert same(deserializer["w"], TENSORS["w"])
