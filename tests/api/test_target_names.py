"""The name of a target decides what a save writes: one rule, whatever function saves."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.command import run
from tensorizer_ops import checkpoint, distributed, errors, safetensors
from tensorizer_ops._front.inspection import File

ops = torch.ops.tensorizer

TENSORS = {"w": torch.arange(4.0)}
REFUSED = [
    "x.pt",
    "q.safetensor",
    "q.safetensrs",
    "pytorch_model.BIN",
    "a.b/x.ckpt",
    "m.tensors.gz",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("model") / "m.tensors")
    tensorizer_ops.save(path, TENSORS)
    return path


def write(target: str, _: str) -> None:
    with tensorizer_ops.Writer(target) as writer:
        writer["w"] = TENSORS["w"]


SURFACES: dict[str, Callable[[str, str], Any]] = {
    "save": lambda target, _: tensorizer_ops.save(target, TENSORS),
    "save to a Path": lambda target, _: tensorizer_ops.save(Path(target), TENSORS),
    "save to a URI": lambda target, _: tensorizer_ops.save(f"file://{target}", TENSORS),
    "save with progress": lambda target, _: tensorizer_ops.save(
        target, TENSORS, progress=lambda *_: None
    ),
    "save_async": lambda target, _: tensorizer_ops.save_async(target, TENSORS).result(),
    "operator save": lambda target, _: ops.save(target, TENSORS),
    "operator save_tensors": lambda target, _: ops.save_tensors(target, ["w"], [TENSORS["w"]]),
    "Writer": write,
    "TorchScript Writer": lambda target, _: torch.classes.tensorizer.Writer(
        target, None, None
    ).close(),
    "convert": lambda target, model: tensorizer_ops.convert(model, target),
    "Reader.rewrite": lambda target, model: tensorizer_ops.Reader(model).rewrite(target),
    "checkpoint.save": lambda target, _: checkpoint.save(target, TENSORS),
    "checkpoint.save_async": lambda target, _: checkpoint.save_async(target, TENSORS).result(),
    "externalize": lambda target, _: tensorizer_ops.externalize(
        torch.jit.script(torch.nn.Linear(1, 1)), target, target + ".code"
    ),
}


@pytest.mark.parametrize("save", SURFACES.values(), ids=SURFACES)
def test_names_of_other_formats_are_refused(
    tmp_path: Path, model: str, save: Callable[[str, str], Any]
) -> None:
    for name in REFUSED:
        ending = os.path.splitext(name)[1].lower()
        with pytest.raises(errors.InvalidArgument, match=f"target ends with '{ending}'"):
            save(str(tmp_path / name), model)
    save(str(tmp_path / "M.SAFETENSORS"), model)
    assert File(str(tmp_path / "M.SAFETENSORS")).format().name == "safetensors"
    save(str(tmp_path / "of.unknown"), model)
    assert File(str(tmp_path / "of.unknown")).format().name == "tensors"
    assert not any((tmp_path / name).exists() for name in REFUSED)


def test_a_command_follows_the_rule(tmp_path: Path, model: str) -> None:
    assert "ends with '.pt'" in run("copy", model, tmp_path / "x.pt", status=2).stderr
    run("copy", model, tmp_path / "x.pt", "--target-option", "format=tensors")
    assert File(str(tmp_path / "x.pt")).format().name == "tensors"


def test_ranks_follow_the_rule(tmp_path: Path) -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(errors.InvalidArgument, match=r"target ends with '\.pt'"):
            distributed.save(str(tmp_path / "x.pt"), TENSORS)
        distributed.save(str(tmp_path / "x.SafeTensors"), TENSORS)
    finally:
        torch.distributed.destroy_process_group()
    assert File(str(tmp_path / "x.SafeTensors")).format().name == "safetensors"
    assert os.listdir(tmp_path) == ["x.SafeTensors"]


def test_who_asks_for_a_format_gets_it(tmp_path: Path) -> None:
    def written(name: str = "x.pt") -> str:
        return File(str(tmp_path / name)).format().name

    for wanted in ("tensors", "safetensors"):
        tensorizer_ops.save(tmp_path / "x.pt", TENSORS, options={"format": wanted})
        assert written() == wanted
    safetensors.save_file(TENSORS, tmp_path / "x.pt")
    assert written() == "safetensors"
    for name in ("x.pt", "x.safetensors", "x.safetensors.index.json"):
        serializer = tensorizer_ops.TensorSerializer(str(tmp_path / name))
        serializer.write_state_dict(TENSORS)
        serializer.close()
        assert written(name) == "tensors"
    with open(tmp_path / "x.pt", "wb") as file:
        tensorizer_ops.save(file, TENSORS)
    assert written() == "tensors"
    tensorizer_ops.save(io.BytesIO(), TENSORS)
