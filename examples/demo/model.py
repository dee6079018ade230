"""The model of the demo, and what `make demo` builds of it before it measures anything.

python examples/demo/model.py FOLDER [--width 1024]

compiles the model without its weights into FOLDER/model.pt2, an AOTInductor package, and the C++
program examples/cpp/load.cpp into FOLDER/cpp.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import warnings
from pathlib import Path

import torch

import tensorizer_ops

EXAMPLES = Path(__file__).resolve().parent.parent
LAYERS = 4


def build_model(width: int) -> torch.nn.Module:
    """Return four feed-forward layers, which have 67 MB of weights if `width` is 1024."""
    torch.manual_seed(1)
    layers: list[torch.nn.Module] = []
    for _ in range(LAYERS):
        layers += [torch.nn.Linear(width, 2 * width), torch.nn.GELU()]
        layers += [torch.nn.Linear(2 * width, width), torch.nn.LayerNorm(width)]
    return torch.nn.Sequential(*layers).eval()


def package_path(folder: Path) -> Path:
    return folder / "model.pt2"


def program_path(folder: Path) -> Path:
    return folder / "cpp" / "load"


def compile_package(path: Path, width: int) -> None:
    program = torch.export.export(build_model(width), (torch.ones(1, width),))
    logging.getLogger("torch._inductor").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(path),
            inductor_configs={
                "aot_inductor.package_constants_in_so": False,
                # For one program, precompiling them takes longer than it saves.
                "aot_inductor.precompile_headers": False,
            },
        )


def build_program(folder: Path) -> None:
    prefixes = f"{torch.utils.cmake_prefix_path};{tensorizer_ops.cmake_prefix_path()}"
    configure = ["cmake", "-S", str(EXAMPLES / "cpp"), "-B", str(folder), "-G", "Ninja"]
    configure += ["--log-level=ERROR", f"-DCMAKE_PREFIX_PATH={prefixes}"]
    for command in (configure, ["cmake", "--build", str(folder), "--target", "load"]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=1024)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    build_program(program_path(given.folder).parent)
    compile_package(package_path(given.folder), given.width)


if __name__ == "__main__":
    main()
