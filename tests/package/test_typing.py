"""What type checkers see of the package if it is installed in place, as by `make build`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from local_servers.waiting import LAST_RESORT
from support.process import ROOT

PROGRAM = """
import io
from pathlib import Path

import tensorizer_ops
from tensorizer_ops import Hashes, Options, Progress, Reader, Save, Sink, Source, Target, Verify
from tensorizer_ops import Writer

def copy(source: Target, target: Target, verify: Verify, hashes: Hashes, how: Options) -> Save:
    def progress(done: int, total: int) -> None: ...

    told: Progress = progress
    tensors = tensorizer_ops.load(source, verify=verify, options=how, progress=told)
    return tensorizer_ops.save_async(target, tensors, hashes=hashes)

def stream(source: Source, target: Sink) -> None:
    with Reader(source) as reader, Writer(target, metadata={"step": "7"}) as writer:
        for name, tensor in reader.items():
            writer[name] = tensor.to(reader.dtype(name)).reshape(reader.shape(name))

with open("a.tensors", "rb") as file:
    stream(file, io.BytesIO())
copy("a.tensors", Path("b.tensors"), "crc32", "sha256", {"fsync": True, "memory_ceiling": 1 << 20})
known: tensorizer_ops.KnownOptions = {"connections": 4, "key": "env:KEY"}
copy("a.tensors", "b.tensors", "none", "chunked", known)
"""

# Wrong lines, and the error that a type checker reports for each.
WRONG = {
    'tensorizer_ops.load("m.tensors", verify="crc64")': "arg-type",
    'tensorizer_ops.laod("m.tensors")': "attr-defined",
    "hashes: tensorizer_ops.Hashes = 'md5'": "assignment",
    "tensorizer_ops.load(7)": "arg-type",
    "options: tensorizer_ops.KnownOptions = {'memory_cieling': 1 << 20}": "typeddict-unknown-key",
    'tensorizer_ops.load(open("m.txt"))': "arg-type",
    'tensorizer_ops.Reader("m.tensors")["x"] = 7': "index",
    'tensorizer_ops.keys.add(name="k", key=7)': "arg-type",
    'tensorizer_ops.digest("m.tensors").shape': "attr-defined",
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with only the package, installed in place as pyproject.toml specifies."""
    folder = tmp_path_factory.mktemp("typing")
    sources = folder / "sources"
    built = shutil.ignore_patterns("*.so", "torch_*_*", "include", "share", "__pycache__")
    shutil.copytree(ROOT / "tensorizer_ops", sources / "tensorizer_ops", ignore=built)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    # Type checkers read only Python, so nothing is compiled.
    (sources / "setup.py").write_text(
        "from setuptools import setup\nsetup(install_requires=[], python_requires='')\n"
    )
    command = [sys.executable, "setup.py", "--quiet", "editable_wheel", "--dist-dir", str(folder)]
    subprocess.run(command, cwd=sources, check=True, capture_output=True, timeout=LAST_RESORT)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    packages = sysconfig.get_path("purelib", "venv", {"base": str(folder / "venv")})
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return folder / "venv"


def check(environment: Path, folder: Path, program: str) -> list[str]:
    """Returns the errors that mypy finds in a program, each with its line."""
    (folder / "program.py").write_text(program)
    python = environment / "bin" / "python"
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports"]
    command += ["--cache-dir", str(environment / "cache"), "--python-executable", str(python)]
    done = subprocess.run(
        [*command, "program.py"], cwd=folder, capture_output=True, text=True, timeout=LAST_RESORT
    )
    assert not done.stderr, done.stderr
    return re.findall(r"program\.py:(\d+: error: .*)", done.stdout)


def test_a_program_in_another_folder_is_checked(environment: Path, tmp_path: Path) -> None:
    assert check(environment, tmp_path, PROGRAM) == []


def test_mistakes_are_found(environment: Path, tmp_path: Path) -> None:
    program = "\n".join(["import tensorizer_ops", *WRONG])
    found = [
        (int(error.partition(":")[0]), error.rpartition("[")[2].rstrip("]"))
        for error in check(environment, tmp_path, program)
    ]
    assert found == list(enumerate(WRONG.values(), start=2))
