"""A C++ program without Python, built as a separate project from the installed package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.packages import Weighted
from support.process import ROOT

# One worker process builds the programs for all tests, and compiles the package that one runs.
pytestmark = pytest.mark.xdist_group("packages")

EXAMPLE = ROOT / "examples" / "cpp"
HOST = ROOT / "tests" / "cpp" / "package" / "host.cpp"
HEADERS = Path(tensorizer_ops.__file__).parent / "include" / "tensorizer_ops"
# The public headers that a file without torch may include.
WITHOUT_TORCH = {"error", "hooks", "keys", "options", "secrets", "stored_tensor", "version"}
PRECOMPILED = "module.h"
# The pages that show C++, and how many programs each of them has.
PAGES = {
    "docs/cpp.md": 2,
    "docs/guides/torchscript-and-cpp.md": 2,
    "docs/security.md": 1,
}
PROGRAMS = [f"{Path(page).stem}_{i}" for page, count in PAGES.items() for i in range(count)]


def each_alone() -> set[Path]:
    """Returns the headers but the precompiled one, and the one that only includes all others."""
    return {
        header for header in HEADERS.iterdir() if header.name not in (PRECOMPILED, "tensorizer.h")
    }


def shown(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the example, the programs in the documentation, and a file for each public header."""
    project = tmp_path_factory.mktemp("project")
    shutil.copytree(EXAMPLE, project, dirs_exist_ok=True)
    (package,) = shown("docs/installing.md", "cmake")
    with (project / "CMakeLists.txt").open("a") as file:
        texts = [text for page in PAGES for text in shown(page, "cpp")]
        for name, program in zip(PROGRAMS, texts, strict=True):
            (project / f"{name}.cpp").write_text(program)
            file.write(f"add_executable({name} {name}.cpp)\n{package.replace('program', name)}")
        file.write(f"add_executable(host {HOST})\n{package.replace('program', 'host')}")
        # The headers of torch take most of the time. Those of this package are compiled each: this
        # one, which includes all of torch that the programs do, with them.
        file.write(f"target_precompile_headers(host PRIVATE <tensorizer_ops/{PRECOMPILED}>)\n")
        file.write(f"foreach(program {' '.join(PROGRAMS)} load serve serve_package)\n")
        file.write("target_precompile_headers(${program} REUSE_FROM host)\nendforeach()\n")
        file.write(f"add_library(headers OBJECT)\n{package.replace('program', 'headers')}")
        file.write("add_library(without_torch OBJECT)\n")
        file.write("target_compile_features(without_torch PRIVATE cxx_std_20)\n")
        file.write(f"target_include_directories(without_torch PRIVATE {HEADERS.parent})\n")
        for header in sorted(each_alone()):
            alone = project / f"alone_{header.stem}.cpp"
            alone.write_text(f"#include <tensorizer_ops/{header.name}>\n")
            target = "without_torch" if header.stem in WITHOUT_TORCH else "headers"
            file.write(f"target_sources({target} PRIVATE {alone.name})\n")
    prefixes = f"{torch.utils.cmake_prefix_path};{tensorizer_ops.cmake_prefix_path()}"
    # clang uses precompiled headers in less than half of GCC's time.
    compiler = "-DCMAKE_CXX_COMPILER=clang++-14"
    configure = ["cmake", "-S", str(project), "-B", str(project / "build"), "-G", "Ninja", compiler]
    subprocess.run([*configure, f"-DCMAKE_PREFIX_PATH={prefixes}"], check=True)
    subprocess.run(["cmake", "--build", str(project / "build")], check=True)
    return project / "build"


@pytest.fixture
def serve(programs: Path) -> Path:
    return programs / "serve"


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("model")  # which some of them serve: weights.pt and weights.tensors
def test_programs_that_are_shown_run(programs: Path, tmp_path: Path, name: str) -> None:
    subprocess.run([programs / name], cwd=tmp_path, check=True)


def test_every_page_that_shows_cpp_is_compiled() -> None:
    pages = {
        str(page.relative_to(ROOT)) for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    }
    assert {page for page in pages if shown(page, "cpp")} == set(PAGES)


def test_public_headers_include_nothing_private() -> None:
    installed = {path.name for path in HEADERS.iterdir()}
    assert {Path(name).stem for name in installed} > WITHOUT_TORCH
    for name in installed:
        text = (HEADERS / name).read_text()
        assert text == (ROOT / "csrc" / "include" / "tensorizer_ops" / name).read_text()
        includes = re.findall(r'^#include (["<])(.+)[">]$', text, re.MULTILINE)
        for bracket, path in includes:
            folder, _, file = path.rpartition("/")
            if bracket == '"':
                assert folder == "tensorizer_ops" and file in installed, (name, path)
            else:
                assert not folder or folder.startswith(("ATen/", "c10/", "torch/")), (name, path)
        # The umbrella header includes all others.
        assert (
            name == "tensorizer.h"
            or f'"tensorizer_ops/{name}"' in (HEADERS / "tensorizer.h").read_text()
        )


def test_public_headers_compile_alone(programs: Path) -> None:
    (precompiled,) = programs.rglob("cmake_pch.hxx")
    assert f"#include <tensorizer_ops/{PRECOMPILED}>" in precompiled.read_text()
    compiled = {path.name for path in programs.rglob("alone_*.o")}
    assert compiled == {f"alone_{path.stem}.cpp.o" for path in each_alone()}


def test_a_program_can_use_all_of_the_public_api(programs: Path, tmp_path: Path) -> None:
    command = [programs / "host"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == tensorizer_ops.__version__
    saved = ("a", "b", "c", "delta", "made", "newer", "older")
    assert sorted(os.listdir(tmp_path)) == [f"{name}.tensors" for name in saved]


@pytest.fixture
def model(tmp_path: Path) -> tuple[torch.jit.ScriptModule, str, str]:
    torch.manual_seed(3)
    layers = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    scripted = torch.jit.script(layers.eval())
    weights = str(tmp_path / "weights.tensors")
    return scripted, tensorizer_ops.externalize(scripted, weights), weights


def run(*command: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=environment
    )


def test_it_serves_what_python_computes(
    serve: Path, model: tuple[torch.jit.ScriptModule, str, str]
) -> None:
    scripted, code, weights = model
    done = run(serve, code, weights, 6)
    assert done.returncode == 0, done.stderr
    with torch.inference_mode():
        expected = scripted(torch.ones(1, 6))
    values = [float(value) for value in done.stdout.splitlines()[0].split()]
    assert values == pytest.approx(expected[0].tolist(), abs=1e-3)


def test_it_serves_a_package(
    programs: Path, without_weights: tuple[Path, Weighted], tmp_path: Path
) -> None:
    place, module = without_weights
    weights = tmp_path / "weights.tensors"
    tensorizer_ops.save(weights, module.state_dict())
    done = run(programs / "serve_package", place, weights, 4096)
    assert done.returncode == 0, done.stderr
    with torch.inference_mode():
        expected = module(torch.ones(1, 4096))
    values = [float(value) for value in done.stdout.splitlines()[0].split()]
    assert values == pytest.approx(expected[0].tolist(), abs=1e-3)
    tensorizer_ops.save(weights, {"first.weight": torch.ones(6)})
    done = run(programs / "serve_package", place, weights, 4096)
    assert done.returncode == 1
    assert done.stderr.startswith("InvalidArgument: ") and "missing in the file" in done.stderr


@pytest.mark.parametrize("name", ["serve", "serve_package"])
def test_there_is_no_python_in_it(programs: Path, name: str) -> None:
    libraries = run("ldd", programs / name).stdout
    assert "libtensorizer_ops.so" in libraries and "libtorch_cpu.so" in libraries
    assert "libpython" not in libraries and "torch_python" not in libraries


def test_errors_are_typed(serve: Path, model: tuple[torch.jit.ScriptModule, str, str]) -> None:
    _, code, weights = model
    done = run(serve, code, weights + ".none", 6)
    assert done.returncode == 1
    assert done.stderr.startswith("NotFound: ") and "weights.tensors.none" in done.stderr
    place = torch.classes.tensorizer.Reader(weights, None).stored("0.weight")
    with open(weights, "r+b") as file:
        file.seek(int(place["data_offset"]))
        file.write(b"\xff\xff\xff")
    done = run(serve, code, weights, 6)
    assert done.returncode == 1
    assert done.stderr.startswith("HashMismatch: ")
