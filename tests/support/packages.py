"""AOTInductor packages."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch


def package(module: torch.nn.Module, example: torch.Tensor, path: Path, **configs: object) -> Path:
    """Compiles a module, which takes many seconds."""
    # Precompiling headers takes longer than it saves.
    configs = {"aot_inductor.precompile_headers": False} | configs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module.eval(), (example,))
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(path), inductor_configs=configs
        )
    return path


class Weighted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4096, 4096), torch.nn.Linear(4096, 100)  # 66 MiB
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("shift", torch.rand(100))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.second(self.first(x).relu()) * self.scale + self.shift)[:, :2]
