"""Importing the package: the names it has, the time it takes, and the versions of torch."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.process import ROOT, environment, run_python
from tensorizer_ops._base import library

IMPORT_TIME = """
import os, sys, time
began = time.process_time()
import asyncio
usual = time.process_time() - began
import torch
threads = len(os.listdir("/proc/self/task"))
modules = set(sys.modules)
began = time.process_time()
import tensorizer_ops
print((time.process_time() - began) / usual)
assert len(os.listdir("/proc/self/task")) == threads
assert not any(name.startswith("torch._dynamo") for name in set(sys.modules) - modules)
"""


def test_importing_takes_little() -> None:
    """Not much longer than asyncio, whose import a busy machine slows down as well."""
    took = [float(run_python(IMPORT_TIME).stdout)]
    while min(took) > 1.6 and len(took) < 4:
        took.append(float(run_python(IMPORT_TIME).stdout))
    assert min(took) <= 1.6


def test_what_it_brings() -> None:
    assert {"load", "save", "errors", "__version__"} <= set(tensorizer_ops.__all__)
    for name in tensorizer_ops.__all__:
        assert getattr(tensorizer_ops, name)
    assert tensorizer_ops.load.__doc__
    assert tensorizer_ops.save.__doc__


# Names that are imported on first use.
LATER = ("TensorSerializer", "TensorType", "protobuf", "serialization", "tensors_pb2", "utils")


def test_what_comes_later_is_listed() -> None:
    assert {*tensorizer_ops.__all__, *LATER} <= set(dir(tensorizer_ops))
    with pytest.raises(AttributeError, match="laod"):
        tensorizer_ops.laod  # noqa: B018


def test_a_type_checker_knows_every_name_and_no_other(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    names = [*tensorizer_ops.__all__, *LATER, "laod"]
    lines = [f"tensorizer_ops.{name}" for name in names]
    program.write_text("\n".join(["import tensorizer_ops", *lines, ""]))
    # Skips the sources of torch, which take long to read and do not matter here.
    checker = ["-m", "mypy", "--no-site-packages", "--ignore-missing-imports", "--no-error-summary"]
    checker += ["--no-implicit-reexport"]
    done = subprocess.run(
        [sys.executable, *checker, "--follow-imports=silent", program],
        cwd=tmp_path,
        env=environment() | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    (error,) = done.stdout.splitlines()
    assert 'no attribute "laod"' in error


def test_pickles_of_earlier_versions_load(tmp_path: Path) -> None:
    path = str(tmp_path / "m.tensors")
    tensorizer_ops.save(path, {"w": torch.ones(2)})
    info = tensorizer_ops.info(path)
    for value in (info, info.tensors[0], tensorizer_ops.Reader(path)):
        now = pickle.dumps(value, protocol=2)  # whose names have no length
        before = now.replace(b"_front.info", b"_front.inspection")
        before = re.sub(rb"tensorizer_ops\._front\.(\w+)", rb"tensorizer_ops._\1", before)
        assert before != now
        loaded = pickle.loads(before)
        assert type(loaded) is type(value)
        assert list(loaded) == list(value)


@pytest.mark.parametrize("version", ["2.10.0", "2.99.1", "3.13.0+cpu", "2.1"])
def test_another_torch_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(ImportError, match=rf"{library.built_for()[-1]}.*{version.split('+')[0]}"):
        library.load_library()


@pytest.mark.parametrize("suffix", [".0", ".9", ".1+cpu", ".0a0+git1234", ".0+cu130"])
def test_what_follows_the_second_number_does_not_count(
    monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(torch, "__version__", library.built_for()[-1] + suffix)
    library.load_library()


def test_the_library_for_the_torch_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch_2_9", "torch_2_11", "torch_2_13", "torch_compat"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "libtensorizer_ops.so").touch()
    (tmp_path / "torch_2_14").mkdir()  # what a removed library leaves
    monkeypatch.setattr(library, "PACKAGE", str(tmp_path))
    assert library.built_for() == ["2.9", "2.11", "2.13"]
    assert library.library_path("2.11.1+cpu") == str(tmp_path / "torch_2_11/libtensorizer_ops.so")
    with pytest.raises(ImportError, match=r"torch 2\.9, 2\.11, 2\.13, and this is torch 2\.14\.0"):
        library.library_path("2.14.0")


SCHEMAS = """
import sys, torch
import tensorizer_ops
packages = {name.partition(".")[0] for name in sys.modules}
assert "tensorizer" not in packages
assert torch.ops.tensorizer.load.default
assert torch.classes.tensorizer.Reader
"""


def test_nothing_of_the_classic_package_is_needed() -> None:
    run_python(SCHEMAS)


def set_up(folder: Path, *commands: str) -> subprocess.CompletedProcess[str]:
    """Runs setup.py without a compiler, and leaves no files in the sources."""
    command = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", folder, "sdist"]
    return subprocess.run(
        [*command, "--dist-dir", folder, *commands],
        cwd=ROOT,
        env=environment() | {"CXX": "no-compiler"},
        capture_output=True,
        text=True,
    )


def test_the_packed_sources_are_all_that_is_needed(tmp_path: Path) -> None:
    assert set_up(tmp_path).returncode == 0
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        there = {name.partition("/")[2] for name in packed.getnames()}
    needed = ["Makefile", "setup.py", ".clang-format", "*.md"]
    needed += [
        "docs/*.md",
        "tests/**/*.py",
        "local_servers/*.py",
        "benchmarks/**/*.*",
        "tests/cpp/*",
        "tools/*.*",
        "csrc/**/*.*",
        "examples/**/*.*",
    ]
    for pattern in needed:
        found = {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}
        assert found and found <= there, pattern
    assert not any(name.endswith((".so", ".pyc")) for name in there)


def test_a_wheel_beside_packed_sources_has_a_library(tmp_path: Path) -> None:
    done = set_up(tmp_path, "bdist_wheel", "--dist-dir", str(tmp_path))
    assert done.returncode != 0 and "there is no C++ compiler `no-compiler`" in done.stderr
