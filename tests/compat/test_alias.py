"""This package under the name ``tensorizer``, in environments with and without the real one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

import tensorizer_ops
from support.process import TIMEOUT
from tensorizer_ops._compat import as_tensorizer

PACKAGE = Path(tensorizer_ops.__file__).parent
Run = Callable[..., "subprocess.CompletedProcess[str]"]

SUBMODULES = [
    *("serialization", "stream_io", "utils", "protobuf", "tensors_pb2", "torch_compat", "errors"),
]

# A program that was written for tensorizer.
PROGRAM = """
import importlib.metadata
import importlib.util
import sys

assert importlib.util.find_spec("tensorizer") is not None
assert "tensorizer" not in sys.modules

import tensorizer.torch_compat
from tensorizer import EncryptionParams, TensorDeserializer, TensorSerializer
from tensorizer import tensors_pb2, torch_compat
from tensorizer.protobuf import serialize_tensor
from tensorizer.torch_compat import tensorizer_saving

assert tensorizer.TensorSerializer is tensorizer.serialization.TensorSerializer
assert tensorizer.torch_compat is torch_compat
assert torch_compat.tensorizer_saving is tensorizer_saving
assert tensorizer.__version__
assert importlib.util.find_spec("tensorizer.protobuf") is not None
assert importlib.util.find_spec("tensorizer.nothing") is None
try:
    import tensorizer.nothing
except ModuleNotFoundError as error:
    assert error.name == "tensorizer.nothing"
else:
    raise AssertionError("there is no such module")
print(importlib.metadata.version("tensorizer"))
print(importlib.metadata.packages_distributions()["tensorizer"])
print(sys.modules["tensorizer"].__file__)
"""

SAME = f"""
import importlib
import sys

import tensorizer
import tensorizer_ops

for name in {SUBMODULES}:
    theirs = importlib.import_module(f"tensorizer.{{name}}")
    ours = importlib.import_module(f"tensorizer_ops.{{name}}")
    assert theirs is ours is getattr(tensorizer, name) is sys.modules[f"tensorizer.{{name}}"]
    assert ours.__name__ == ours.__spec__.name == f"tensorizer_ops.{{name}}"
    assert ours.__spec__.loader.get_source(ours.__name__)  # as tracebacks and inspect ask for it
assert tensorizer.TensorSerializer is tensorizer_ops.TensorSerializer
assert set(dir(tensorizer_ops)) <= set(dir(tensorizer))
tensorizer.set_secret = "patched"
assert tensorizer_ops.set_secret == "patched"
del tensorizer.set_secret
assert not hasattr(tensorizer_ops, "set_secret")
try:
    tensorizer.set_secret
except AttributeError as error:
    assert str(error) == "module 'tensorizer' has no attribute 'set_secret'", error
import tensorizer.torch_compat
tensorizer.serialization.TensorSerializer.__init__ = "patched"
assert tensorizer_ops.TensorSerializer.__init__ == "patched"
tensorizer.torch_compat.tensorizer_saving = "patched"
from tensorizer_ops.torch_compat import tensorizer_saving
assert tensorizer_saving == "patched"
"""


@pytest.fixture(scope="module")
def environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, bool]:
    """Returns the bin folder of a virtual environment, and whether it has the real tensorizer."""
    real = getattr(request, "param", True)
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    left_out = ("tensorizer_ops", "__editable__", "__pycache__")
    left_out += () if real else ("tensorizer",)
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.name.startswith(left_out) and not (packages / package.name).exists():
            (packages / package.name).symlink_to(package)
    for name in ("tensorizer_ops", "tensorizer_ops.libs"):  # the second is part of a wheel
        (packages / name).symlink_to(PACKAGE.with_name(name))
    return folder / "bin", real


@pytest.fixture
def run(environment: tuple[Path, bool], tmp_path: Path) -> Run:
    """Returns a function that runs a program or script of the environment in an empty folder."""
    bin_folder, _ = environment

    def run_in_it(
        *command: str | Path, check: bool = True, path: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        variables |= {} if path is None else {"PYTHONPATH": path}
        first, *others = command
        done = subprocess.run(
            [bin_folder / first, *others],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    return run_in_it


@pytest.mark.parametrize(
    "environment", [True, False], indirect=True, ids=["beside the real one", "alone"]
)
def test_a_console_script_needs_no_line_of_code(environment: tuple[Path, bool], run: Run) -> None:
    bin_folder, real = environment
    script = bin_folder / "program"
    script.write_text(f"#!{bin_folder / 'python'}\n{PROGRAM}")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    asked = run("python", "-m", "tensorizer_ops.alias")
    assert asked.stderr == ""
    folder = asked.stdout.removesuffix("\n")
    version, distributions, place = run("program", path=folder).stdout.splitlines()
    assert version == "2.12.1"
    assert "tensorizer" in distributions
    assert Path(place).resolve() == Path(tensorizer_ops.__file__).resolve()
    without = run("program", check=False)
    if real:
        assert "site-packages" in without.stdout.splitlines()[-1]
    else:
        assert "assert importlib.util.find_spec" in without.stderr


def test_all_of_it_is_this_package(run: Run) -> None:
    run("python", "-c", SAME, path=as_tensorizer.FOLDER)
    run("python", "-c", f"import tensorizer_ops as t\nt.install_as_tensorizer()\n{SAME}")


VERSION_AND_STAR = """
import pkgutil
import tensorizer
import tensorizer._version
import tensorizer_ops

assert tensorizer.__version__ == tensorizer._version.__version__
assert tensorizer.__version__ == f"2.12.1+ops{tensorizer_ops.__version__}"
assert b"message Tensor" in pkgutil.get_data("tensorizer", "tensors.proto")
before = set(globals())
from tensorizer import *
print(*sorted(set(globals()) - before - {"before"}))
"""
STAR = """
before = set(globals())
from tensorizer import *
print(*sorted(set(globals()) - before - {"before"}))
"""


def test_version_and_star_are_those_of_the_release(run: Run) -> None:
    ours = run("python", "-c", VERSION_AND_STAR, path=as_tensorizer.FOLDER).stdout
    assert ours == run("python", "-c", STAR).stdout
    assert "TensorSerializer" in ours and "tensors_pb2" in ours


def test_a_star_needs_no_protobuf(run: Run) -> None:
    program = f"import sys; sys.modules['google.protobuf'] = None\n{STAR}"
    assert "tensors_pb2" not in run("python", "-c", program, path=as_tensorizer.FOLDER).stdout


WORKERS = """
import multiprocessing
import os
import pickle
import subprocess
import sys


def work(number):
    import tensorizer.torch_compat
    import tensorizer_ops
    assert tensorizer.TensorSerializer is tensorizer_ops.TensorSerializer
    return number, tensorizer.torch_compat.tensorizer_saving


if __name__ == "__main__":
    import tensorizer_ops
    tensorizer_ops.install_as_tensorizer()
    tensorizer_ops.install_as_tensorizer()
    folders = os.environ["PYTHONPATH"].split(os.pathsep)
    assert sys.path[0] == folders[0] and sys.path.count(folders[0]) == 1
    assert folders[1:] == ["/first", "", "/second"], folders
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (number, saving), = pool.map(work, [3])
    assert number == 3 and saving is tensorizer_ops.torch_compat.tensorizer_saving
    program = "import tensorizer, tensorizer_ops; assert tensorizer.keys is tensorizer_ops.keys"
    subprocess.run([sys.executable, "-c", program], check=True)
"""


def test_workers_find_it_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "workers.py").write_text(WORKERS)
    run("python", "workers.py", path=os.pathsep.join(["/first", "", "/second"]))


TOO_LATE = """
import os, sys, types
import tensorizer_ops
before = list(sys.path), dict(os.environ)
sys.modules["tensorizer"] = types.ModuleType("tensorizer")
try:
    tensorizer_ops.install_as_tensorizer()
except RuntimeError as error:
    assert "imported already (<module 'tensorizer'>)" in str(error), error
    assert (list(sys.path), dict(os.environ)) == before
else:
    raise AssertionError("another tensorizer was there")
"""


def test_after_the_real_one_it_is_too_late(run: Run) -> None:
    run("python", "-c", TOO_LATE)
