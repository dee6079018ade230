"""Installs a wheel into an empty environment, and uses it there.

    PYTHONPATH=. python tools/check_wheel.py dist/*.whl --python 3.12 --torch torch==2.11.0

No library in it may need a newer system than its name says. The programs of ``first_use.py`` and
``examples/cpp`` must run, the first in a place without a compiler and without certificate
authorities, within half a minute of ``pip install``, and without a library of the system that the
wheel should contain. ``--tests`` runs the tests as well, except those of the source tree
(``tests/package``).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from zipfile import ZipFile

from pythons import home_of

from local_servers.web import nginx

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("api", "compat", "remote", "security")
MOST_SECONDS = 30
# Hides compilers and certificate authorities from a command, which is given as arguments.
BARE = """
for file in $(ls -d /usr/bin/*gcc* /usr/bin/*g++* /usr/bin/cc /usr/bin/c++ /usr/bin/*clang* \
    2>/dev/null); do mount --bind /dev/null "$file"; done
for folder in /etc/ssl /etc/pki; do [ ! -d $folder ] || mount -t tmpfs none $folder; done
unset AWS_CA_BUNDLE CURL_CA_BUNDLE REQUESTS_CA_BUNDLE SSL_CERT_FILE
exec "$@"
"""
# Prints the libraries of the system that a load from a server uses, but for those of C and C++.
LIBRARIES = """
import torch
before = set(open("/proc/self/maps").read().split())
import tensorizer_ops
torch.ops.tensorizer.names
after = set(open("/proc/self/maps").read().split())
own = ("libc.", "libm.", "libdl.", "libpthread.", "librt.", "libstdc++.", "libgcc_s.", "libresolv.")
for path in sorted(after - before):
    if path.startswith(("/usr/lib/", "/lib/")) and not path.rpartition("/")[2].startswith(own):
        print(path)
"""
PREFIXES = """
import tensorizer_ops, torch
print(tensorizer_ops.cmake_prefix_path(), torch.utils.cmake_prefix_path, sep=";")
"""
IS_FOR_CUDA = "import torch; print(torch.version.cuda or '')"
# Prints what a compiler is told where CMake does not work.
FLAGS = """
import os, tensorizer_ops
from torch.utils.cpp_extension import include_paths, library_paths
library, package = tensorizer_ops.library_path(), os.path.dirname(tensorizer_ops.__file__)
print(f"-I{package}/include", *(f"-I{path}" for path in include_paths()))
print(library, f"{package}/libtensorizer_core.so", *(f"-L{path}" for path in library_paths()))
print(*(f"-Wl,-rpath,{path}" for path in (package, os.path.dirname(library), *library_paths())))
print("-ltorch -ltorch_cpu -lc10")
"""


def check_versions(wheel: Path) -> None:
    """Check that systems with glibc 2.34 and GCC 11 have all symbols that the libraries need."""
    newest = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (11,)}
    with tempfile.TemporaryDirectory() as name, ZipFile(wheel) as packed:
        packed.extractall(name)
        libraries = [path for path in Path(name).rglob("*") if ".so" in path.suffixes]
        for library in libraries:
            shown = subprocess.run(
                ["readelf", "--version-info", "--wide", str(library)],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            needed = shown.partition("Version needs section")[2]
            for kind, number in re.findall(r"Name: (\w+?)_([\d.]+) ", needed):
                if tuple(map(int, number.split("."))) > newest.get(kind, (99,)):
                    sys.exit(f"{library.name} needs {kind}_{number}")
    print(f"{len(libraries)} libraries need no newer system than the name of the wheel says.")


class Environment:
    """An empty environment with a torch, and a folder beside it to run programs in."""

    def __init__(self, folder: Path, python: str, torch: str) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.bin = folder / "environment" / "bin"
        self.torch = torch
        self.run(python, "-m", "venv", str(self.bin.parent))
        self.install()

    def install(self, *requirements: str) -> None:
        """Install what is required; torch is named as well, so that it is not replaced."""
        self.python("-m", "pip", "install", "--quiet", self.torch, *requirements)

    def run(self, *command: str) -> str:
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        variables = os.environ | {"PATH": path, "PYTHONPATH": "", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            command, cwd=self.work, env=variables, stdout=subprocess.PIPE, text=True
        )
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}")
        return done.stdout.strip()

    def python(self, *arguments: str) -> str:
        return self.run(str(self.bin / "python"), *arguments)


def check_first_use(environment: Environment, wheel: Path, served: Path) -> None:
    bare = ("unshare", "--mount", "--map-root-user", "sh", "-c", BARE, "sh")
    with nginx(served) as web:
        started = time.time()
        environment.install(str(wheel))
        arguments = (str(web.root / "model.tensors"), web.tls_url("model.tensors"), web.ca)
        program = (str(ROOT / "tools" / "first_use.py"), *arguments)
        loaded = float(environment.run(*bare, str(environment.bin / "python"), *program))
    print(f"From `pip install` to the first tensors: {loaded - started:.1f} s")
    if loaded - started > MOST_SECONDS:
        sys.exit(f"that is more than {MOST_SECONDS} s")


def check_cpp(environment: Environment, model: Path) -> None:
    source, build = ROOT / "examples" / "cpp", environment.work / "cpp"
    if environment.python("-c", IS_FOR_CUDA):
        # The CMake package of such a torch needs a whole CUDA toolkit.
        flags = environment.python("-c", FLAGS).split()
        build.mkdir()
        program = ("-std=c++20", str(source / "load.cpp"), "-o", str(build / "load"))
        environment.run("g++", *program, *flags, "-Wl,--allow-shlib-undefined")
    else:
        prefixes = f"-DCMAKE_PREFIX_PATH={environment.python('-c', PREFIXES)}"
        folders = ("-S", str(source), "-B", str(build), "-G", "Ninja")
        environment.run("cmake", *folders, "--log-level=ERROR", prefixes)
        environment.run("cmake", "--build", str(build), "--target", "load")
    copy = environment.work / "copy.tensors"
    environment.run(str(build / "load"), str(model), str(copy), "all", "1")
    environment.run("tensorizer-ops", "verify", str(copy))
    print("A C++ program works, too.")


def run_tests(environment: Environment) -> None:
    # The simulated device of the tests is built from csrc, and docs has examples that they run.
    for part in ("tests", "local_servers", "examples", "csrc", "docs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, environment.work / part, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", environment.work)
    environment.install("--requirement", str(ROOT / "tools" / "requirements-test.txt"))
    workers = str(len(os.sched_getaffinity(0)))
    options = ("-q", "-n", workers, "--dist", "loadgroup")
    tests = [str(environment.work / "tests" / test) for test in TESTS]
    print(environment.python("-m", "pytest", *options, *tests))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", help="the version of another Python, such as 3.12")
    parser.add_argument("--torch", default="torch==2.13.0", help="what pip installs as torch")
    parser.add_argument("--tests", action="store_true", help="run the tests as well")
    given = parser.parse_args()
    check_versions(given.wheel)
    python = sys.executable
    if given.python:
        python = str(home_of(given.python) / "bin" / f"python{given.python}")
    with tempfile.TemporaryDirectory() as name:
        environment = Environment(Path(name), python, given.torch)
        check_first_use(environment, given.wheel.resolve(), Path(name, "served"))
        if found := environment.python("-c", LIBRARIES):
            sys.exit(f"the wheel uses libraries of the system: {found}")
        check_cpp(environment, Path(name, "served", "files", "model.tensors"))
        if given.tests:
            run_tests(environment)


if __name__ == "__main__":
    main()
