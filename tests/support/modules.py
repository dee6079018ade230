"""Modules to save and load, with all kinds of parameters and buffers."""

from __future__ import annotations

import torch

from support.samples import sample


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(7, 5)
        self.second = torch.nn.Linear(7, 5)
        self.second.weight = self.first.weight  # tied
        self.register_buffer("steps", torch.arange(3))
        self.register_buffer("scratch", sample(torch.float32, (4,), 9), persistent=False)
        self.register_parameter("nothing", None)


class Model(torch.nn.Module):
    """Has its own tensors, tied ones, persistent and non-persistent buffers, frozen weights."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.w = torch.nn.Parameter(torch.randn(6, generator=generator))
        self.low = torch.nn.Parameter(
            torch.randn(3, 2, generator=generator).bfloat16(), requires_grad=False
        )
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.norm = torch.nn.BatchNorm1d(5)
        self.register_buffer("own", torch.randn(2, 2, generator=generator))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block.first(x) + block.second(x) + block.scratch.sum()
            x = torch.nn.functional.pad(self.norm(x), (0, 2))
        return x * self.w.sum() + self.own.sum()


def tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns all tensors of a module by state dict name, including non-persistent buffers."""
    return {**module.state_dict(), **dict(module.named_buffers())}


def layers() -> torch.nn.Module:
    """Returns three layers of one shape, each with a buffer."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3)))
    for number, layer in enumerate(model):
        layer.register_buffer("b", torch.full((2,), float(number)))
    return model
