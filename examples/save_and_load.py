"""Saves a model's weights and loads them: as tensors, into a model, and into a meta-device model.

Run it with `python examples/save_and_load.py [FILE]`. Without FILE, it uses a temporary file.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

import tensorizer_ops


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))


def show(path: Path) -> None:
    model = make_model()
    tensorizer_ops.save(path, model.state_dict())
    print(f"saved {path.stat().st_size:,} bytes")

    # Tensors by name, memory-mapped. verify="all" checks them against the hashes in the file.
    state = tensorizer_ops.load(path, verify="all")
    print("loaded", {name: tuple(tensor.shape) for name, tensor in state.items()})

    # A model with allocated weights is filled in place.
    other = make_model()
    tensorizer_ops.load_into(other, path)

    # A model on the meta device takes over the loaded tensors.
    with torch.device("meta"):
        empty = make_model()
    tensorizer_ops.load_into(empty, path, device="cuda" if torch.cuda.is_available() else "cpu")

    inputs = torch.randn(2, 512)
    assert torch.equal(model(inputs), other(inputs))
    assert torch.allclose(model(inputs), empty.cpu()(inputs))
    print("all three models give the same result")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path)
    file = parser.parse_args().file
    if file is not None:
        show(file)
        return
    with tempfile.TemporaryDirectory() as folder:
        show(Path(folder) / "model.tensors")


if __name__ == "__main__":
    main()
