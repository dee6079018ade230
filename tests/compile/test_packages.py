"""AOTInductor packages: those that load and save when they run, and those without weights."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.packages import Weighted, package
from support.process import fork_python
from support.samples import same

ops = torch.ops.tensorizer

# One worker process compiles what the tests of this group need.
pytestmark = pytest.mark.xdist_group("packages")

Model = Callable[..., Any]


def open_package(path: Path) -> Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Model = torch._inductor.aoti_load_package(str(path))
    return model


class Steps(torch.nn.Module):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.weights, self.result = str(folder / "w.tensors"), str(folder / "y.tensors")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = tensorizer_ops.load(self.weights, verify="all", threads=2)
        y = torch.nn.functional.linear(x, weights["w"], weights["b"])
        tensorizer_ops.save(self.result, {"y": y}, hashes="crc32")
        again = torch.zeros(2)
        ops.load_into(self.weights, ["b"], [again])
        ops.verify(self.result, verify="crc32")
        half = tensorizer_ops.load(self.weights, slices={"b": slice(1, 2)}, names=["b"])["b"] / 2
        return ops.load_tensors(self.result, ["y"])[0] + again / 2 + half


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a package of Steps, and the files that Steps needs while it is compiled."""
    folder = tmp_path_factory.mktemp("steps")
    write_weights(folder, 1.0)
    ops.save(str(folder / "y.tensors"), {"y": torch.zeros(1, 2)})
    package(Steps(folder), torch.ones(1, 3), folder / "steps.pt2")
    yield folder
    shutil.rmtree(folder)


def write_weights(folder: Path, factor: float) -> None:
    ops.save(str(folder / "w.tensors"), {"w": torch.ones(2, 3) * factor, "b": torch.ones(2)})


def test_a_package_loads_and_saves_when_it_runs(steps: Path) -> None:
    model = open_package(steps / "steps.pt2")
    for factor in (1.0, 5.0):
        write_weights(steps, factor)
        assert model(torch.ones(1, 3)).tolist() == [[3 * factor + 2] * 2]
        assert ops.load(str(steps / "y.tensors"))["y"].tolist() == [[3 * factor + 1] * 2]


def test_weights_that_changed_are_an_error(steps: Path) -> None:
    model = open_package(steps / "steps.pt2")
    ops.save(str(steps / "w.tensors"), {"w": torch.ones(2, 4), "b": torch.ones(2)})
    with pytest.raises(RuntimeError, match=r"'w'.*float32\[2, 4\], and was float32\[2, 3\]"):
        model(torch.ones(1, 3))
    os.remove(steps / "w.tensors")
    with pytest.raises(RuntimeError, match=r"tensorizer.NotFound: .*w\.tensors"):
        model(torch.ones(1, 3))


@pytest.fixture
def weighted(without_weights: tuple[Path, Weighted]) -> tuple[Model, Weighted]:
    path, module = without_weights
    return open_package(path), module


@pytest.mark.parametrize("verify", ["none", "all"])
def test_a_package_is_filled(path: str, weighted: tuple[Model, Weighted], verify: str) -> None:
    model, module = weighted
    x = torch.rand(1, 4096)
    with torch.no_grad():
        for _ in range(2):
            tensorizer_ops.save(path, module.state_dict())
            # The program contains the small constant itself.
            with pytest.raises(ValueError, match=r"only in the file: 'scale'$"):
                tensorizer_ops.load_constants(model, path, verify=verify)
            keys = tensorizer_ops.load_constants(model, path, verify=verify, strict=False)
            assert keys == ([], ["scale"])
            assert torch.allclose(model(x), module(x), atol=1e-4)
            module.first.weight.mul_(1.5)


def test_weights_may_be_loaded_by_a_reader_of_a_stream(
    path: str, weighted: tuple[Model, Weighted]
) -> None:
    model, module = weighted
    tensorizer_ops.save(path, module.state_dict())
    with open(path, "rb") as file:
        tensorizer_ops.load_constants(model, f"fd:{file.fileno()}", verify="crc32", strict=False)
    x = torch.rand(1, 4096)
    assert torch.allclose(model(x), module(x), atol=1e-4)


def test_what_does_not_fit_is_listed(path: str, weighted: tuple[Model, Weighted]) -> None:
    model, module = weighted
    x = torch.rand(1, 4096)
    tensorizer_ops.save(path, module.state_dict())
    tensorizer_ops.load_constants(model, path, strict=False)
    expected = model(x)
    state = module.state_dict()
    del state["shift"], state["first.bias"]
    state["first.weight"] = torch.ones(3)
    state["second.weight"] = state["second.weight"].half()
    tensorizer_ops.save(path, {**state, "extra": torch.ones(1)})
    for strict in (False, True):
        with pytest.raises(ValueError) as error:
            tensorizer_ops.load_constants(model, path, strict=strict)
        text = str(error.value)
        assert "missing in the file: " in text and "'shift'" in text and "'first.bias'" in text
        assert "'first.weight' (float32[3] in the file, float32[4096, 4096] here)" in text
        assert "'second.weight' (float16[100, 4096] in the file, float32[100, 4096] here)" in text
        assert ("only in the file: 'scale', 'extra'" in text) == strict
    # The constants keep their previous values.
    assert same(model(x), expected)


def test_what_is_not_there_and_what_is_no_package(
    path: str, weighted: tuple[Model, Weighted]
) -> None:
    with pytest.raises(FileNotFoundError):
        tensorizer_ops.load_constants(weighted[0], path)
    for other in (3, torch.nn.Linear(1, 1), "model.pt2"):
        with pytest.raises(TypeError, match="AOTInductor package"):
            tensorizer_ops.load_constants(other, path)


MEMORY = """
import sys, warnings, torch, tensorizer_ops
warnings.simplefilter("ignore")
model = torch._inductor.aoti_load_package(sys.argv[1])
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
open("/proc/self/clear_refs", "w").write("5")
before = peak()
if sys.argv[3] == "ours":
    tensorizer_ops.load_constants(model, sys.argv[2])
else:
    model.load_constants(torch.ops.tensorizer.load(sys.argv[2]), check_full_update=True)
print(peak() - before)
"""


def test_there_is_no_second_copy(path: str, without_weights: tuple[Path, Weighted]) -> None:
    place, module = without_weights
    assert place.stat().st_size < 8 << 20
    state = module.state_dict()
    del state["scale"]
    tensorizer_ops.save(path, state)
    size = sum(tensor.nbytes for tensor in state.values())
    ours, torchs = (int(fork_python(MEMORY, str(place), path, how).stdout) for how in ("ours", "-"))
    assert size < ours < 1.2 * size
    assert torchs > 1.8 * size
