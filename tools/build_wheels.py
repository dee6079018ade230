"""Builds what a release publishes: a source distribution, and a wheel.

    python3.11 tools/build_wheels.py [--only-here]

The wheel is for Python 3.11 and later, and for the torches of ``requirements-torches.txt``. It
takes their headers and libraries from PyPI (540 MB each), and needs the headers of Python 3.12
beside those of 3.11 (``pythons.py``). ``--only-here`` builds a wheel for the Python that runs this,
and its torch.

The wheel contains every library that it needs but those of torch and of the C library, with their
licences, which it finds by dpkg. It is for systems with glibc 2.34 and the C++ library of GCC 11,
or later: a library that needs newer ones is an error.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from zipfile import ZipFile

from pythons import home_of

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "dist"
TORCHES = ROOT / "build" / "torches"
PLATFORM = f"manylinux_2_34_{platform.machine()}"
# Libraries that the torch of the user brings.
FROM_TORCH = ("libtorch*.so*", "libc10*.so*", "libgomp*.so*", "libcudart*.so*")


# What is needed of a torch to build for it.
NEEDED = re.compile(r"torch/(include/.*|version\.py|lib/lib(c10|torch|torch_cpu)\.so)")


def run(*command: str, **variables: str) -> str:
    # The folder of pip's programs, of which auditwheel runs one.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    env = os.environ | {"PATH": path} | variables
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout


def python(module: str, *arguments: str, **variables: str) -> str:
    return run(sys.executable, "-m", module, *arguments, **variables)


def torch_folder(wanted: str) -> Path:
    """Return a folder with what is needed of a torch, which is fetched unless it is there."""
    packages = TORCHES / wanted
    if not packages.exists():
        print(f"Getting {wanted}", flush=True)
        with tempfile.TemporaryDirectory(dir=TORCHES) as name:
            download = ("download", "-qq", "--no-deps", "--only-binary=:all:", "--dest", name)
            python("pip", *download, wanted)
            with ZipFile(only_file(Path(name), "*.whl")) as wheel:
                members = [member for member in wheel.namelist() if NEEDED.fullmatch(member)]
                wheel.extractall(Path(name, "packages"), members)
            Path(name, "packages").rename(packages)
    return packages / "torch"


def all_torches_and_pythons() -> dict[str, str]:
    """Return the variables for setup.py to build for each of them."""
    if sys.version_info[:2] != (3, 11):
        sys.exit(f"Python 3.11 builds the wheels, and this is {platform.python_version()}")
    headers = home_of("3.12") / "include" / "python3.12"
    TORCHES.mkdir(parents=True, exist_ok=True)
    lines = Path(ROOT, "tools", "requirements-torches.txt").read_text().splitlines()
    folders = [str(torch_folder(line)) for line in lines if not line.startswith("#")]
    return {
        "TENSORIZER_OPS_TORCHES": os.pathsep.join(folders),
        "TENSORIZER_OPS_PYTHON_3_12": str(headers),
    }


def only_file(folder: Path, pattern: str) -> Path:
    (file,) = folder.glob(pattern)
    return file


def owner(library: str) -> str:
    """Return the Debian package that a grafted library came from.

    Its name is that of the file in the package, with eight digits of a digest before the first dot.
    """
    name = re.sub(r"-[0-9a-f]{8}\.", ".", library, count=1)
    for line in run("dpkg-query", "--search", f"*/{name}").splitlines():
        packages, _, path = line.partition(": ")
        if Path(path).name == name:
            return packages.partition(",")[0].partition(":")[0]
    sys.exit(f"no package has {name}, so its licence is not known")


def add_licences(wheel: Path, folder: Path) -> None:
    """Add the licences of the libraries that were grafted into a wheel, and pack it again."""
    python("wheel", "unpack", str(wheel), "--dest", str(folder))
    unpacked = only_file(folder, "tensorizer_ops-*")
    licences = only_file(unpacked, "*.dist-info") / "licenses" / "libraries"
    licences.mkdir(parents=True)
    packages = {owner(file.name) for file in (unpacked / "tensorizer_ops.libs").iterdir()}
    for package in sorted(packages):
        text = Path("/usr/share/doc", package, "copyright").read_bytes()
        (licences / f"{package}.txt").write_bytes(text)
    wheel.unlink()
    python("wheel", "pack", str(unpacked), "--dest-dir", str(wheel.parent))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only-here", action="store_true", help="for this Python and its torch")
    variables = {} if parser.parse_args().only_here else all_torches_and_pythons()
    # A wheel has all that is in this folder, also of earlier versions.
    for folder in (ROOT / "build").glob("lib.*"):
        shutil.rmtree(folder)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ("--no-isolation", "--outdir", str(folder))
        python("build", "--sdist", *options, ".")
        python("build", "--wheel", *options, ".", **variables)
        excluded = [word for library in FROM_TORCH for word in ("--exclude", library)]
        repaired = folder / "repaired"
        built = only_file(folder, "*.whl")
        to = ("--plat", PLATFORM, "--wheel-dir", str(repaired))
        python("auditwheel", "repair", *excluded, *to, str(built))
        wheel = only_file(repaired, "*.whl")
        add_licences(wheel, folder / "unpacked")
        OUTPUT.mkdir(parents=True, exist_ok=True)
        for file in (only_file(folder, "*.tar.gz"), only_file(repaired, "*.whl")):
            (OUTPUT / file.name).write_bytes(file.read_bytes())
            print(f"{OUTPUT / file.name}: {file.stat().st_size / 1e6:.1f} MB")
        libraries = [name for name in ZipFile(wheel).namelist() if ".libs/" in name]
        print(f"with {len(libraries)} libraries: {', '.join(Path(n).name for n in libraries)}")


if __name__ == "__main__":
    main()
