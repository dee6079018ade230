"""Saves and loads a model everywhere, in every way that torch has, beside other libraries.

python examples/demo/demo.py FOLDER [--width 1024] [--picture demo.png]

`make demo` runs it, and builds FOLDER first (model.py). It starts nginx, an S3 server and Redis on
free ports of this machine, saves the model to files and to them, and loads it back: in Python, in
TorchScript, in a compiled function, into an AOTInductor package and in a C++ program. Every load is
compared with the model. All files are in a temporary directory, which is removed at the end (TMPDIR
sets its location).

Files are in the page cache, all libraries have their default settings, and saves do not wait for
the disk. A figure is the fastest of three loads into new memory, after one that is not counted.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import tempfile
from pathlib import Path

# The servers are those of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch
import ways
from model import build_model, package_path, program_path
from places import places
from report import OTHERS, Speeds, draw, table

import tensorizer_ops

# The only one of our ways that is measured with mapped files.
MAPS = "Python"


def have_memory_at_hand(size: int) -> None:
    """Touch memory and free it: a virtual machine may have to get it back from its host first."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1


def measure(folder: Path, built: Path, state: ways.State) -> tuple[Speeds, int]:
    """Return the speeds of all ways at all places, and how many of them were measured."""
    loads = {
        "Python": ways.in_python,
        "TorchScript": ways.in_torchscript,
        "compiled": ways.compiled,
        "package": ways.into_package(package_path(built), state),
        "C++": ways.by_program(program_path(built), folder),
        "tensorizer": ways.with_tensorizer,
        "safetensors": ways.with_safetensors,
        "torch.load": ways.with_torch,
    }
    size = sum(tensor.nbytes for tensor in state.values())
    speeds: Speeds = {}
    with places(folder) as found:
        for place in found:
            if sys.stderr.isatty():
                print(f"\r{place.name.strip():30}", end="", flush=True, file=sys.stderr)
            row = speeds.setdefault(place.name, {})
            have_memory_at_hand(4 * size)
            if place.copy and not place.is_of_torch:
                row["save"] = size / 1e9 / ways.save(place, state)
            for name, load in loads.items():
                if name not in OTHERS and (place.is_of_torch or not (place.copy or name == MAPS)):
                    continue
                seconds = load(place, state)
                if seconds is not None:
                    row[name] = size / 1e9 / seconds
    if sys.stderr.isatty():
        print("\r" + " " * 30 + "\r", end="", file=sys.stderr)
    return speeds, sum(len(row.keys() - {"save"}) for row in speeds.values())


def load_a_file_of_tensorizer(folder: Path, state: ways.State) -> None:
    from tensorizer import TensorSerializer

    path = folder / "theirs.tensors"
    serializer = TensorSerializer(str(path))
    serializer.write_state_dict(state)
    serializer.close()
    ways.check(tensorizer_ops.load(path, verify="all"), state)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="what model.py has built")
    parser.add_argument("--width", type=int, default=1024, help="the size of the layers")
    parser.add_argument("--picture", type=Path, default=Path("demo.png"))
    given = parser.parse_args()

    model = build_model(given.width)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    size = sum(tensor.nbytes for tensor in state.values())
    machine = f"{size / 1e6:.0f} MB in {len(state)} tensors, {os.cpu_count()} CPUs"
    with tempfile.TemporaryDirectory(prefix="tensorizer-demo-") as name:
        folder = Path(name)
        speeds, count = measure(folder, given.folder, state)
        load_a_file_of_tensorizer(folder, state)
    print(f"{machine}, torch {torch.__version__}; GB/s\n")
    columns = ["save", "Python", "TorchScript", "compiled", "package", "C++", *OTHERS]
    print(table(speeds, columns))
    print(
        f"\nThe first six columns are tensorizer_ops. After each of the {count} kinds of loads,\n"
        "every byte was compared with the model; of a package, its output. A file that\n"
        "tensorizer wrote was loaded, too."
    )
    draw(speeds, given.picture, machine)
    print(f"The speeds in Python are drawn in {given.picture}.")


if __name__ == "__main__":
    main()
