"""Importing the package: what it brings, what it takes, and with which torch it works."""

from __future__ import annotations

import pytest
import torch

import tensorizer_ops
from process import run_python
from tensorizer_ops import _build, _library

IMPORT_TIME = """
import os, sys, time, torch
threads = len(os.listdir("/proc/self/task"))
modules = set(sys.modules)
began = time.perf_counter()
import tensorizer_ops
print(time.perf_counter() - began)
assert len(os.listdir("/proc/self/task")) == threads
assert not any(name.startswith("torch._dynamo") for name in set(sys.modules) - modules)
"""


def test_importing_takes_little() -> None:
    took = [float(run_python(IMPORT_TIME).stdout)]
    # A machine that is busy with something else gets another chance to be fast, no more.
    while min(took) > 0.06 and len(took) < 4:
        took.append(float(run_python(IMPORT_TIME).stdout))
    assert min(took) <= 0.06


def test_what_it_brings() -> None:
    assert {"load", "save", "errors", "__version__"} <= set(tensorizer_ops.__all__)
    for name in tensorizer_ops.__all__:
        assert getattr(tensorizer_ops, name)
    assert tensorizer_ops.load.__doc__
    assert tensorizer_ops.save.__doc__


@pytest.mark.parametrize("version", ["2.10.0", "2.99.1", "3.13.0+cpu", "2.1"])
def test_another_torch_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(ImportError, match=rf"{_build.TORCH}.*{version.split('+')[0]}"):
        _library.load_library()


@pytest.mark.parametrize("suffix", [".0", ".9", ".1+cpu", ".0a0+git1234", ".0+cu130"])
def test_what_follows_the_second_number_does_not_count(
    monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(torch, "__version__", _build.TORCH + suffix)
    _library.load_library()


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
