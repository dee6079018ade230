"""Builds two libraries, and a small module that binds them to Python.

``libtensorizer_core.so`` contains the layers of ``csrc`` that do not need torch,
``libtensorizer_ops.so`` those above, in a folder for its torch, such as ``torch_2_13``. Neither
depends on Python, so C++ programs can use both. If there is a CUDA toolkit,
``libtensorizer_ops_cuda.so`` is built, too (``tools/build_cuda.py``). The module, ``_core``, is
linked against the first only, so that it serves every torch, and uses the limited API of Python
from 3.12 on, so that it serves every later Python.

Builds for the Python that runs it and for its torch. ``tools/build_wheels.py`` asks for more:
``TENSORIZER_OPS_TORCHES`` lists the folders of other torches, of which only headers and libraries
are used, and ``TENSORIZER_OPS_PYTHON_3_12`` is the folder with the headers of Python 3.12, to build
the module for later Pythons beside that for this one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple, NoReturn

from setuptools import Extension, setup

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import build_cuda
from find_torch import site_packages_with_torch
from short_progress import short_progress

OLDEST_TORCH = (2, 11)

# pkg-config's name of each library, with the Debian and Fedora packages that contain it.
SYSTEM_LIBRARIES = {
    "hiredis": ("libhiredis-dev", "hiredis-devel"),
    "libcurl": ("libcurl4-openssl-dev", "libcurl-devel"),
    "libcrypto": ("libssl-dev", "openssl-devel"),
    "libdeflate": ("libdeflate-dev", "libdeflate-devel"),
    "libsodium": ("libsodium-dev", "libsodium-devel"),
    "simdjson": ("libsimdjson-dev", "simdjson-devel"),
    "zlib": ("zlib1g-dev", "zlib-devel"),
}

PACKAGE = "tensorizer_ops"
CORE = "libtensorizer_core"
LIBRARY = "libtensorizer_ops"
MODULE = "_core"
# Python 3.12 is the first whose limited API has what nanobind needs.
LIMITED_API = "0x030C0000"
LIMITED_MODULE = "_core_abi3"
# The folders of csrc that need no torch: they form libtensorizer_core.
CORE_LAYERS = {"base", "codec", "format", "trust", "io", "engine"}

COMPILE_FLAGS = ["-std=c++20", "-O2", "-g0", "-Wall", "-Wextra"]
# Warnings are errors only for `make build`, which sets the variable, and for `setup.py build_ext`:
# another compiler may have other warnings, which must not break an installation.
if "build_ext" in sys.argv or os.environ.get("TENSORIZER_OPS_WERROR"):
    COMPILE_FLAGS.append("-Werror")

# A program that the C++ compiler and its headers must be able to compile.
COMPILER_PROBE = """
#include <bit>
#include <concepts>
#include <span>
static_assert(__cplusplus >= 202002L);
static_assert(std::bit_ceil(3u) == 4u);
std::span<const int> nothing;
"""


def how_to_install(*packages: tuple[str, str]) -> str:
    """Return the commands that install packages, given as pairs of Debian and Fedora names."""
    debian = " ".join(names[0] for names in packages)
    fedora = " ".join(names[1] for names in packages)
    return f"`apt install {debian}` (Debian, Ubuntu) or `dnf install {fedora}` (Fedora)"


def stop(sentence: str) -> NoReturn:
    raise SystemExit(f"tensorizer_ops cannot be built: {sentence}.")


class Torch(NamedTuple):
    folder: Path
    version: tuple[int, int]

    @property
    def package(self) -> str:
        """The folder of the library for this torch."""
        return "torch_{}_{}".format(*self.version)


def torch_in(folder: Path) -> Torch:
    text = Path(folder, "version.py").read_text()
    found = re.search(r"^__version__ = '((\d+)\.(\d+).*)'", text, re.MULTILINE)
    assert found, f"{folder} has no version of torch"
    torch = Torch(folder, (int(found[2]), int(found[3])))
    if torch.version < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        stop(f"torch {found[1]} is too old: run `pip install 'torch>={oldest}'`")
    return torch


def need_torches() -> list[Torch]:
    """Make torch importable, and return what to build for, the oldest first."""
    try:
        import torch
    except ModuleNotFoundError:
        packages = site_packages_with_torch(os.getppid())
        if packages is None:
            stop(
                f"there is no torch in {sys.prefix}: run `pip install torch` first, or where torch "
                "is in an environment that this build does not see, run `pip install "
                "'setuptools>=77.0.3'` and `pip install --no-build-isolation .` there (with uv, "
                "`uv pip` instead of `pip`; for a wheel, `python -m build --wheel --no-isolation`)"
            )
        site.addsitedir(packages)
        import torch
    installed = torch_in(Path(torch.__file__).parent)
    listed = os.environ.get("TENSORIZER_OPS_TORCHES")
    folders = map(Path, listed.split(os.pathsep)) if listed else [installed.folder]
    return sorted(map(torch_in, folders), key=lambda torch: torch.version)


def requirement(torches: list[Torch]) -> str:
    first, last = torches[0].version, torches[-1].version
    if first == last:
        return "torch=={}.{}.*".format(*first)
    return f"torch>={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"


def need_tools() -> None:
    # pip installs ninja in this folder, which is on the PATH only in an activated environment.
    os.environ["PATH"] += os.pathsep + sysconfig.get_path("scripts")
    tools = {
        "pkg-config": ("pkg-config", "pkgconf-pkg-config"),
        "ninja": ("ninja-build", "ninja-build"),
    }
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        packages = how_to_install(*(tools[tool] for tool in missing))
        stop(f"there is no {' and no '.join(missing)}: run {packages}")


def need_system_libraries() -> None:
    missing = [
        name
        for name in SYSTEM_LIBRARIES
        if subprocess.run(["pkg-config", "--exists", name], check=False).returncode
    ]
    if missing:
        packages = how_to_install(*(SYSTEM_LIBRARIES[name] for name in missing))
        stop(f"pkg-config does not find {' and '.join(missing)}: run {packages}")


def need_compiler() -> None:
    compiler = os.environ.get("CXX", "c++")
    command = [*shlex.split(compiler), "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    try:
        probe = subprocess.run(command, input=COMPILER_PROBE, capture_output=True, text=True)
    except FileNotFoundError:
        packages = how_to_install(("build-essential", "gcc-c++"))
        stop(f"there is no C++ compiler `{compiler}`: run {packages}, or set CXX")
    if probe.returncode:
        stop(
            f"`{compiler}` does not support C++20: install g++ 11, clang++ 14 or later, and set CXX"
        )
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        packages = how_to_install(("python3-dev", "python3-devel"))
        stop(f"Python.h is not in {headers}: run {packages}")


def pkg_config(option: str) -> list[str]:
    output = subprocess.run(
        ["pkg-config", option, *SYSTEM_LIBRARIES], check=True, capture_output=True, text=True
    )
    return shlex.split(output.stdout)


def joined(folder: Path) -> str:
    """Return a file that includes the sources of a folder of csrc.

    They are compiled as one, because most of the compiler's time goes to headers. So they must not
    have the same names in their anonymous namespaces.
    """
    sources = sorted(folder.glob("*.cpp"))
    text = "".join(f'#include "{path.relative_to("csrc")}"\n' for path in sources)
    file = Path("build", "joined", *folder.parts[1:]).with_suffix(".cpp")
    if not file.exists() or file.read_text() != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(file)


def install_for_cpp(folder: Path) -> None:
    """Copy the public headers and the CMake package to the library's folder."""
    csrc = Path("csrc")
    shutil.rmtree(folder / "include", ignore_errors=True)
    shutil.copytree(csrc / "include", folder / "include")
    config = Path("TensorizerOps", "TensorizerOpsConfig.cmake")
    place = folder / "share" / "cmake" / config
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(csrc / config.name, place)


def build_settings() -> dict[str, object]:
    """Return the arguments of setup() for a wheel and for a build in place."""
    torches = need_torches()
    need_tools()
    need_system_libraries()
    need_compiler()

    import nanobind
    from torch.utils.cpp_extension import BuildExtension

    csrc = Path("csrc")
    includes = {"include_dirs": [str(csrc.resolve()), str(Path(csrc, "include").resolve())]}

    def sources(*layers: str) -> list[str]:
        folders = {path.parent for layer in layers for path in Path(csrc, layer).rglob("*.cpp")}
        return [joined(folder) for folder in sorted(folders)]

    def foreign(*folders: Path | str) -> list[str]:
        """Return flags for headers of others, whose warnings are ignored."""
        return [f"-isystem{folder}" for folder in folders]

    def link_flags(library: str, core: str) -> list[str]:
        # No symbol may stay undefined, so that the libraries cannot depend on Python by mistake.
        return [f"-Wl,-soname,{library}.so", "-Wl,-z,defs", f"-Wl,-rpath,{core}"]

    above_core = {path.name for path in csrc.iterdir() if path.is_dir()}
    above_core -= {*CORE_LAYERS, "cuda", "include", "python"}
    core = Extension(
        f"{PACKAGE}.{CORE}",
        sources(*CORE_LAYERS),
        **includes,
        extra_compile_args=[*COMPILE_FLAGS, *pkg_config("--cflags")],
        extra_link_args=[*link_flags(CORE, "$ORIGIN"), *pkg_config("--libs")],
        language="c++",
    )

    def library_for(torch: Torch) -> Extension:
        headers = Path(torch.folder, "include")
        return Extension(
            f"{PACKAGE}.{torch.package}.{LIBRARY}",
            sources(*above_core),
            **includes,
            library_dirs=[str(torch.folder / "lib")],
            libraries=["tensorizer_core", "c10", "torch", "torch_cpu"],
            extra_compile_args=[
                *COMPILE_FLAGS,
                *foreign(headers, headers / "torch" / "csrc" / "api" / "include"),
            ],
            extra_link_args=link_flags(LIBRARY, "$ORIGIN/.."),
            language="c++",
        )

    python = sysconfig.get_path("include")

    def module(name: str, headers: str) -> Extension:
        bindings = Path(nanobind.include_dir()).parent
        return Extension(
            f"{PACKAGE}.{name}",
            [*sources("python"), str(bindings / "src" / "nb_combined.cpp")],
            **includes,
            libraries=["tensorizer_core"],
            define_macros=[("Py_LIMITED_API", LIMITED_API)] if name == LIMITED_MODULE else [],
            extra_compile_args=[
                *COMPILE_FLAGS,
                # The headers of the running Python, which setuptools adds, must not be found first.
                *foreign(headers, python, bindings / "include", bindings / "ext/robin_map/include"),
                *("-fvisibility=hidden", "-fno-strict-aliasing", "-DNDEBUG"),
                *("-ffunction-sections", "-fdata-sections"),
            ],
            extra_link_args=["-Wl,-rpath,$ORIGIN", "-Wl,--gc-sections"],
            language="c++",
        )

    modules = [module(LIMITED_MODULE if sys.version_info >= (3, 12) else MODULE, python)]
    if headers := os.environ.get("TENSORIZER_OPS_PYTHON_3_12"):
        modules.append(module(LIMITED_MODULE, headers))

    class Build(BuildExtension):
        def finalize_options(self) -> None:
            super().finalize_options()
            # The same folder for every kind of build, so that only changed sources are compiled.
            self.objects = os.path.abspath(os.path.join("build", sys.implementation.cache_tag))

        def build_extension(self, extension) -> None:
            self.build_temp = os.path.join(self.objects, *extension.name.split(".")[1:])
            extension.library_dirs.append(os.path.dirname(self.get_ext_fullpath(core.name)))
            try:
                with short_progress():
                    super().build_extension(extension)
            except RuntimeError as error:  # from torch, after ninja has printed the messages
                stop(f"{error} {extension.name}; the compiler's messages are above")

        def get_ext_filename(self, name: str) -> str:
            last = name.rpartition(".")[2]
            if last in (CORE, LIBRARY):
                return os.path.join(*name.split(".")) + ".so"
            if last == LIMITED_MODULE:
                return os.path.join(*name.split(".")[:-1], f"{MODULE}.abi3.so")
            return super().get_ext_filename(name)

        def run(self) -> None:
            folder = Path(PACKAGE) if self.inplace else Path(self.build_lib, PACKAGE)
            for torch in torches:
                (folder / torch.package).mkdir(parents=True, exist_ok=True)
            super().run()
            install_for_cpp(folder)
            if toolkit := build_cuda.find_toolkit():
                build_cuda.build(toolkit, folder)

    return {
        "ext_modules": [core, *map(library_for, torches), *modules],
        "cmdclass": {"build_ext": Build},
        "options": {"bdist_wheel": {"py_limited_api": "cp311"}} if len(modules) == 2 else {},
        "install_requires": [requirement(torches)],
        "python_requires": ">={}.{}".format(*sys.version_info),
    }


def source_settings() -> dict[str, object]:
    """Return the arguments of setup() for a source distribution, which fits any torch."""
    return {
        "install_requires": [f"torch>={'.'.join(map(str, OLDEST_TORCH))}"],
        "python_requires": ">=3.10",
    }


# Commands that only describe or pack the sources, and work without torch and compilers unless they
# are combined with a command that builds.
describes = {"sdist", "egg_info", "--version", "--name"} & set(sys.argv[1:])
builds = {"build", "build_ext", "bdist_wheel", "install", "develop"} & set(sys.argv[1:])
setup(**(source_settings() if describes and not builds else build_settings()))
