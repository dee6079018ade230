"""Uses an installed package in every way once: first_use.py FILE HTTPS_URL CA_FILE

The URL is where the file, which this program writes, can be read. Prints the time when the first
tensors have been loaded.
"""

from __future__ import annotations

import subprocess
import sys
import time

import torch

import tensorizer_ops

PATH, URL, CA_FILE = sys.argv[1:]


@torch.jit.script
def scripted(path: str) -> dict[str, torch.Tensor]:
    return torch.ops.tensorizer.load(path)


@torch.compile(fullgraph=True, backend="aot_eager")
def compiled() -> torch.Tensor:
    return torch.ops.tensorizer.load(PATH)["weight"] + 1


def main() -> None:
    torch.manual_seed(0)
    model = {"weight": torch.randn(1000, 1000), "steps": torch.arange(10)}
    tensorizer_ops.save(PATH, model, hashes="all")

    def compare(loaded: dict[str, torch.Tensor]) -> None:
        assert list(loaded) == list(model)
        assert all(torch.equal(loaded[name], tensor) for name, tensor in model.items())

    compare(tensorizer_ops.load(PATH, verify="all"))
    print(time.time())
    compare(scripted(PATH))
    compare(tensorizer_ops.load(URL, options={"ca_file": CA_FILE}))
    assert torch.equal(compiled(), model["weight"] + 1)
    try:
        tensorizer_ops.load(URL)
    except ValueError as error:
        assert "this system has no certificate authorities" in str(error), error
    else:
        raise AssertionError("a server that nobody trusts was trusted")
    for command in (["info"], ["verify"]):
        subprocess.run(["tensorizer-ops", *command, PATH], check=True, capture_output=True)


main()
