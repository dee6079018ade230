"""Saves a model in the background during training, and measures the training steps.

Run it with `python examples/background_save.py`. --mebibytes and --steps change the size of the
model and the length of the training. The same training runs four times: without saves, with
blocking saves, with `save_async`, and with saves in another process. Each file is compared with the
state of the model at the time of the save.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

import tensorizer_ops

State = dict[str, torch.Tensor]
Save = Callable[[Path, State], Future[None] | None]


def train(model: torch.nn.Module, steps: int, folder: Path, save: Save | None) -> list[float]:
    """Save after a quarter and three quarters of the steps. Return the seconds of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    inputs = torch.randn(8, model[0].in_features, generator=torch.Generator().manual_seed(0))
    seconds: list[float] = []
    saved: list[tuple[Path, State, Future[None] | None]] = []
    for step in range(steps):
        expected = None
        if save and step in (steps // 4, 3 * steps // 4):
            expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        begin = perf_counter()
        if save and expected:
            path = folder / f"{step}.tensors"
            saved.append((path, expected, save(path, model.state_dict())))
        # Keep the memory of the gradients: allocating it again would slow down some steps.
        optimizer.zero_grad(set_to_none=False)
        model(inputs).square().mean().backward()
        optimizer.step()
        seconds.append(perf_counter() - begin)
    for path, expected, future in saved:
        if future:
            future.result()
        for name, tensor in tensorizer_ops.load(path, verify="all").items():
            assert torch.equal(tensor, expected[name]), f"{name} in {path} differs"
    return seconds


def save_and_wait(path: Path, state: State) -> None:
    tensorizer_ops.save(path, state)


def saves_in(process: ProcessPoolExecutor) -> Save:
    def save(path: Path, state: State) -> Future[None]:
        copies = {
            name: torch.empty_like(tensor, device="cpu").share_memory_().copy_(tensor)
            for name, tensor in state.items()
        }
        return process.submit(tensorizer_ops.save, path, copies, threads=1)

    return save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=256, help="size of the model")
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()

    width = 1024
    layers = max(1, arguments.mebibytes * (1 << 20) // (4 * width * (width + 1)))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        process = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        # Start the process before the measurements.
        process.submit(tensorizer_ops.save, folder / "first.tensors", {}).result()
        ways: dict[str, Save | None] = {
            "no save": None,
            "save": save_and_wait,
            "save_async": tensorizer_ops.save_async,
            "save in another process": saves_in(process),
        }
        print(f"{layers} layers of {width} x {width}, {arguments.steps} steps, 2 saves, in ms:")
        print(f"{'':24} {'median step':>12} {'longest step':>13} {'all steps':>10}")

        def new_model() -> torch.nn.Module:
            torch.manual_seed(0)
            return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))

        train(new_model(), 4, folder, None)  # warm-up: the first steps take longer
        for name, save in ways.items():
            seconds = train(new_model(), arguments.steps, folder, save)
            figures = (median(seconds), max(seconds), sum(seconds))
            print("{:24} {:12.1f} {:13.1f} {:10.0f}".format(name, *(1000 * f for f in figures)))


if __name__ == "__main__":
    main()
