"""Installing: what is built, for which torch, and the errors if something is missing."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.process import ROOT, environment
from tensorizer_ops._base.library import RUNTIME_PACKAGES, built_for

TOOLS = ROOT / "tools"
CORE = ROOT / "tensorizer_ops" / "libtensorizer_core.so"
LIBRARY = Path(tensorizer_ops.library_path())


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A writable copy of the sources of an installation."""
    folder = tmp_path / "sources"
    built = shutil.ignore_patterns("*.so", "torch_*_*", "include", "share", "__pycache__")
    shutil.copytree(ROOT / "tensorizer_ops", folder / "tensorizer_ops", ignore=built)
    for name in ("csrc", "tools"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    return folder


def run(folder: Path, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment() | variables, capture_output=True, text=True
    )


def set_up(
    folder: Path, *command: str | Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    return run(folder, sys.executable, "-W", "ignore", "setup.py", "-q", *command, **variables)


def test_a_wheel_wants_the_torch_that_it_was_built_for(sources: Path) -> None:
    done = set_up(sources, "dist_info", "--output-dir", sources.parent)
    assert done.returncode == 0, done.stderr
    (metadata,) = sources.parent.glob("*.dist-info/METADATA")
    text = metadata.read_text()
    assert f"Requires-Dist: torch=={built_for()[-1]}.*\n" in text
    assert "Requires-Python: >={}.{}\n".format(*sys.version_info) in text
    assert all(f" {place}" in text.partition("\n\n")[0] for place in ("safetensors", "Azure"))


def test_a_wheel_for_several_torches_wants_one_of_them(sources: Path, tmp_path: Path) -> None:
    folders = []
    for version in ("2.15.0", "2.11.0+cu130", "2.13.1"):
        folders.append(tmp_path / version)
        folders[-1].mkdir()
        (folders[-1] / "version.py").write_text(f"__version__ = '{version}'\n")
    listed = os.pathsep.join(map(str, folders))
    done = set_up(
        sources, "dist_info", "--output-dir", sources.parent, TENSORIZER_OPS_TORCHES=listed
    )
    assert done.returncode == 0, done.stderr
    (metadata,) = sources.parent.glob("*.dist-info/METADATA")
    assert "Requires-Dist: torch<2.16,>=2.11\n" in metadata.read_text()


def test_packed_sources_may_be_built_for_any_torch(sources: Path) -> None:
    done = set_up(sources, "egg_info", "--egg-base", sources.parent)
    assert done.returncode == 0, done.stderr
    (metadata,) = sources.parent.glob("*.egg-info/PKG-INFO")
    assert re.search(r"^Requires-Dist: torch>=\d+\.\d+$", metadata.read_text(), re.MULTILINE)
    assert "Requires-Python: >=3.10\n" in metadata.read_text()


REQUIRED = "import build_backend as b; print(b.get_requires_for_build_{}())"


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_ninja_is_asked_for_where_there_is_none(sources: Path, kind: str) -> None:
    (sources.parent / "ninja").touch(mode=0o755)
    for path, expected in ((str(sources.parent), False), (str(sources), True)):
        command = [sys.executable, "-W", "ignore", "-c", REQUIRED.format(kind)]
        done = run(sources, *command, PYTHONPATH=str(TOOLS), PATH=path)
        assert done.returncode == 0, done.stderr
        assert ("'ninja'" in done.stdout.splitlines()[-1]) == expected


def test_an_older_python_is_refused_in_one_sentence(sources: Path) -> None:
    older = "import sys; sys.version_info = (3, 9, 18); import build_backend"
    done = run(sources, sys.executable, "-c", older, PYTHONPATH=str(TOOLS))
    assert done.returncode == 1
    assert re.fullmatch("tensorizer_ops needs Python 3.10 or later, .*\n", done.stderr)
    ast.parse((TOOLS / "build_backend.py").read_text(), feature_version=(3, 9))


class Processes:
    """A fake /proc folder, in which each process was started by the one before it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.last = folder, 1

    def start(self, *command: str | Path, cwd: Path, **variables: str | Path) -> None:
        process = self.folder / str(self.last + 1)
        process.mkdir(parents=True)
        (process / "cmdline").write_text("".join(f"{part}\0" for part in command))
        (process / "environ").write_text("".join(f"{k}={v}\0" for k, v in variables.items()))
        (process / "cwd").symlink_to(cwd)
        (process / "stat").write_text(f"{self.last + 1} (a) name) S {self.last} 0")
        self.last += 1


@pytest.mark.parametrize(
    "way", ["active", "conda", "python", "=python", "prefix", ".venv", "build", "shell"]
)
def test_the_torch_of_the_environment_that_a_build_is_for_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.syspath_prepend(TOOLS)
    import find_torch

    monkeypatch.setattr(find_torch.site, "getsitepackages", list)
    wanted, other = tmp_path / "project" / ".venv", tmp_path / "other"
    packages = {
        prefix: prefix / "lib" / find_torch.PYTHON / "site-packages" for prefix in (wanted, other)
    }
    for prefix, folder in packages.items():
        (folder / "torch").mkdir(parents=True)
        (folder / "torch" / "version.py").touch()
        (prefix / "bin").mkdir()
        (prefix / "pyvenv.cfg").touch()
    calls: dict[str, tuple[list[str | Path], dict[str, Path]]] = {
        "active": (["uv"], {"VIRTUAL_ENV": wanted}),
        "conda": (["uv"], {"CONDA_PREFIX": wanted}),
        "python": (["uv", "--python", wanted / "bin" / "python"], {"VIRTUAL_ENV": other}),
        "=python": (["uv", f"--python={wanted}/bin/python"], {"VIRTUAL_ENV": other}),
        "prefix": (["uv", "-p", "../.venv"], {"VIRTUAL_ENV": other}),
        ".venv": (["uv"], {}),
        "build": ([wanted / "bin" / "python", "-m", "build"], {"VIRTUAL_ENV": other}),
        "shell": (["uv"], {}),
    }
    command, variables = calls[way]
    processes = Processes(tmp_path / "proc")
    shell = wanted if way == "shell" else other
    processes.start("bash", "-c", "uv pip\n" * 1000, cwd=Path("/"), VIRTUAL_ENV=shell)
    below = tmp_path / "project" / "sources"
    below.mkdir()
    processes.start(*command, cwd=Path("/") if way == "shell" else below, **variables)
    found = find_torch.site_packages_with_torch(processes.last, processes.folder)
    assert found and Path(found).resolve() == packages[wanted]
    for folder in packages.values():
        shutil.rmtree(folder)
    assert find_torch.site_packages_with_torch(processes.last, processes.folder) is None


def test_a_build_in_an_environment_of_its_own_finds_the_torch_of_who_called_it(
    tmp_path: Path,
) -> None:
    venv.create(tmp_path / "alone", symlinks=True)
    script = "import find_torch, os; print(find_torch.site_packages_with_torch(os.getppid()))"
    alone = tmp_path / "alone" / "bin" / "python"
    environment = {"PYTHONPATH": str(TOOLS), "PATH": os.environ["PATH"]}
    done = subprocess.run([alone, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == str(Path(torch.__file__).parent.parent), done.stderr


COMPILER = """#!/bin/sh
case "$*" in *" -c "*) ;; *) exec c++ "$@";; esac
echo "$*" >> {log}
echo "what the compiler says" >&2
exit 1
"""


@pytest.mark.parametrize("ours", [False, True])
def test_a_compiler_that_warns_stops_only_our_own_builds(sources: Path, ours: bool) -> None:
    log = sources.parent / "log"
    compiler = sources.parent / "compiler"
    compiler.write_text(COMPILER.format(log=log))
    compiler.chmod(0o755)
    done = set_up(
        sources, *(["build_ext", "--inplace"] if ours else ["bdist_wheel"]), CXX=str(compiler)
    )
    assert done.returncode != 0
    assert "what the compiler says" in done.stdout
    assert "the compiler's messages are above" in done.stderr
    commands = log.read_text().splitlines()
    assert commands and all(("-Werror" in command.split()) == ours for command in commands)


NINJA = r"""
import subprocess, sys
from short_progress import short_progress
with short_progress():
    print("[1/2] ccache c++ -MMD -O2 -c -c /a/b/csrc/io/x.cpp -o /a/b/build/x.o -Wall", flush=True)
    subprocess.run(["sh", "-c", "echo '[2/2] something else'; echo x.cpp:3: error: what >&2"],
                   stderr=subprocess.STDOUT)
print("after")
"""


def test_what_is_compiled_shows(tmp_path: Path) -> None:
    done = run(Path("/"), sys.executable, "-c", NINJA, PYTHONPATH=str(TOOLS))
    assert done.stdout.splitlines() == [
        "[1/2] a/b/csrc/io/x.cpp",
        "[2/2] something else",
        "x.cpp:3: error: what",
        "after",
    ]


def needed(library: Path) -> set[str]:
    """Returns the libraries that a library is linked against, except the compiler's own."""
    text = subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout
    of_compiler = {"ld-linux-x86-64", "libc", "libgcc_s", "libm", "libstdc++"}
    return set(re.findall(r"\(NEEDED\).*\[([^]]+)\.so", text)) - of_compiler


def test_every_library_that_is_needed_has_its_packages() -> None:
    assert needed(CORE) == {*RUNTIME_PACKAGES}
    (module,) = CORE.parent.glob("_core.*.so")
    assert needed(module) == {"libtensorizer_core"}


def test_what_needs_torch_stands_on_what_does_not() -> None:
    of_torch = {name for name in needed(LIBRARY) if name.startswith(("libtorch", "libc10"))}
    assert of_torch and "libtorch_python" not in of_torch
    assert needed(LIBRARY) - of_torch == {"libtensorizer_core"}


def defined(library: Path) -> set[str]:
    """Returns our functions that a library exports, except inline ones."""
    text = subprocess.run(["nm", "-DC", library], capture_output=True, text=True).stdout
    return set(re.findall(r"^\w+ T (tensorizer::.*)$", text, re.MULTILINE))


def test_nothing_is_in_both_libraries() -> None:
    core, above = defined(CORE), defined(LIBRARY)
    assert "tensorizer::usable_cpus()" in core and "tensorizer::version()" in above
    assert not core & above


@pytest.mark.parametrize("library", RUNTIME_PACKAGES)
def test_a_library_that_is_missing_is_one_sentence(tmp_path: Path, library: str) -> None:
    shutil.copytree(ROOT / "tensorizer_ops", tmp_path / "tensorizer_ops")
    copy = tmp_path / "tensorizer_ops" / CORE.name
    version = rf"({library}\.so\.)([0-9.]+)".encode()
    (name,) = {match[0] for match in re.finditer(version, copy.read_bytes())}
    other = re.sub(rb"\d", b"9", name)
    copy.write_bytes(copy.read_bytes().replace(name, other))
    done = run(tmp_path, sys.executable, "-c", "import tensorizer_ops", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    debian, fedora = RUNTIME_PACKAGES[library]
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: tensorizer_ops needs {other.decode()}, which")
    assert f"`apt install {debian}`" in last and f"`dnf install {fedora}`" in last


def test_a_library_that_does_not_fit_is_one_sentence(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tensorizer_ops", tmp_path / "tensorizer_ops")
    library = tmp_path / LIBRARY.relative_to(ROOT)
    library.write_bytes(b"of another machine")
    for code in ("import torch, tensorizer_ops", "import tensorizer_ops; tensorizer_ops.load"):
        done = run(tmp_path, sys.executable, "-c", code, PYTHONPATH=str(tmp_path))
        last = done.stderr.splitlines()[-1]
        assert last.startswith("ImportError: tensorizer_ops cannot be loaded (")
        assert "install it again" in last
    # Programs that use only torch still work.
    code = "import tensorizer_ops, torch; torch.ones(1)"
    done = run(tmp_path, sys.executable, "-c", code, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0
    assert "RuntimeWarning: torch.ops.tensorizer is missing: tensorizer_ops cannot" in done.stderr
    (tmp_path / CORE.relative_to(ROOT)).write_bytes(b"of another machine")
    done = run(tmp_path, sys.executable, "-c", "import tensorizer_ops", PYTHONPATH=str(tmp_path))
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: tensorizer_ops cannot be loaded (")


def test_the_other_name_is_installed_too(sources: Path, tmp_path: Path) -> None:
    done = set_up(sources, "build_py", "--build-lib", tmp_path / "installed")
    assert done.returncode == 0, done.stderr
    installed, there = (
        {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        for folder in (
            root / "tensorizer_ops" / "_compat" / "alias"
            for root in (tmp_path / "installed", sources)
        )
    )
    assert installed == there
    assert "tensorizer/__init__.py" in installed


def test_the_image_has_what_a_build_needs() -> None:
    (command,) = re.findall(
        r"apt-get install --yes --no-install-recommends \\\n(.*?)\nWORKDIR",
        (ROOT / "examples" / "docker" / "Dockerfile").read_text(),
        re.DOTALL,
    )
    needed = set((TOOLS / "packages-build.txt").read_text().split())
    # The image has a compiler and Python.
    needed -= {"build-essential", "ccache", "python3-dev", "python3-venv"}
    assert set(command.replace("\\", "").split()) == needed
