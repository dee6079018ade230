"""What a compiler makes of the ops: nothing is dropped, and the order stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tensorizer_ops

ops = torch.ops.tensorizer


class Steps(torch.nn.Module):
    """Saves and loads one file again and again; each load has to see the save before it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tensorizer_ops.save(self.path, {"x": x})
        first = ops.load_tensors(self.path, ["x"])[0]
        x.add_(1)
        ops.save_tensors(self.path, ["x"], [x])
        second = torch.zeros(3)
        ops.load_into(self.path, ["x"], [second])
        x.add_(1)
        tensorizer_ops.save(self.path, {"x": x})
        third = tensorizer_ops.load(self.path, names=["x"])["x"]
        x.add_(1)
        ops.save_tensors(self.path, ["x"], [x])
        return first, second, third


def compiled(steps: Steps, backend: str) -> Callable[..., object]:
    return torch.compile(steps, fullgraph=True, backend=backend)


def exported(steps: Steps, strict: bool, decomposed: bool) -> Callable[..., object]:
    program = torch.export.export(steps, (torch.zeros(3),), strict=strict)
    return (program.run_decompositions() if decomposed else program).module()


WAYS = {
    "eager": lambda steps: compiled(steps, "eager"),
    "aot_eager": lambda steps: compiled(steps, "aot_eager"),
    "export": lambda steps: exported(steps, False, False),
    "strict export": lambda steps: exported(steps, True, False),
    "decomposed export": lambda steps: exported(steps, False, True),
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_dropped_or_moved(path: str, way: str) -> None:
    ops.save(path, {"x": torch.full((3,), 9.0)})
    function = WAYS[way](Steps(path))
    ops.save(path, {"x": torch.full((3,), 9.0)})
    for start in (0.0, 5.0):
        values = [tensor.tolist() for tensor in function(torch.full((3,), start))]
        assert values == [[start] * 3, [start + 1] * 3, [start + 2] * 3]
        assert ops.load(path)["x"].tolist() == [start + 3] * 3
