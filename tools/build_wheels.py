"""Builds what a release publishes: a source distribution, and a wheel for this Python and torch.

    python tools/build_wheels.py

The wheel contains every library that it needs but those of torch and of the C library, with their
licences, which it finds by dpkg. It is for systems with glibc 2.34 and the C++ library of GCC 11,
or later: a library that needs newer ones is an error.
"""

from __future__ import annotations

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

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "dist"
PLATFORM = f"manylinux_2_34_{platform.machine()}"
# Libraries that the torch of the user brings.
FROM_TORCH = ("libtorch*.so*", "libc10*.so*", "libgomp*.so*", "libcudart*.so*")


def run(*command: str) -> str:
    # The folder of pip's programs, of which auditwheel runs one.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PATH": path}, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout


def python(module: str, *arguments: str) -> str:
    return run(sys.executable, "-m", module, *arguments)


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
    # A wheel has all that is in this folder, also of earlier versions.
    for folder in (ROOT / "build").glob("lib.*"):
        shutil.rmtree(folder)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ("--no-isolation", "--outdir", str(folder))
        python("build", "--sdist", *options, ".")
        python("build", "--wheel", *options, ".")
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
