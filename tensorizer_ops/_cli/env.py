"""``env``: versions, processor, devices and limits. Shows no environment variable and no path."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import resource
from argparse import Namespace
from pathlib import Path

import torch

from tensorizer_ops import __version__ as version, _core
from tensorizer_ops._base import library
from tensorizer_ops._base.tables import Table
from tensorizer_ops._cli.output import bold

# Instructions that the library or one of its dependencies chooses at run time.
_USED_FEATURES = (
    *("avx", "avx2", "avx512bw", "avx512f", "pclmulqdq", "sha_ni", "vpclmulqdq"),  # x86-64
    *("asimd", "crc32", "pmull", "sha2"),  # aarch64
)
_PACKAGES = ("protobuf", "safetensors", "tensorizer", "numpy")


def env(given: Namespace) -> int:
    facts = _facts()
    if given.json:
        print(json.dumps(facts))
    else:
        print(*Table((), [*facts.items()]).lines(bold), sep="\n")
    return 0


def _facts() -> dict[str, str]:
    files, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "tensorizer_ops": f"{version}, built for torch {', '.join(library.built_for())}",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "packages": ", ".join(_packages()) or "none",
        "libraries": ", ".join(_libraries()),
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "processor": f"{platform.machine()}, {_core.usable_cpus()} CPUs usable of {os.cpu_count()}",
        "instructions": " ".join(_features()) or "none of those that are used",
        "memory": f"{memory >> 20} MiB, page of {os.sysconf('SC_PAGE_SIZE')} bytes",
        "devices": ", ".join(_devices()),
        "open files": f"{_limit(files)} (at most {_limit(most_files)})",
        "locked memory": f"{_limit(locked)} bytes",
    }


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _packages() -> list[str]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _libraries() -> list[str]:
    """Return the names of the files of libraries that are loaded, which have their versions."""
    used = re.compile(rf"/((?:{'|'.join(library.RUNTIME_PACKAGES)})[-.][^/\n]*)$", re.MULTILINE)
    return sorted(set(used.findall(Path("/proc/self/maps").read_text())))


def _features() -> list[str]:
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(r"^(?:flags|Features)\s*: (.*)$", text, re.MULTILINE)
    return sorted(set(_USED_FEATURES).intersection(found[1].split())) if found else []


def _devices() -> list[str]:
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or torch.accelerator.device_count() == 0:
        return ["cpu"]
    count = torch.accelerator.device_count()
    if accelerator.type == "cuda":
        return ["cpu", *(torch.cuda.get_device_name(number) for number in range(count))]
    return ["cpu", f"{count} of {accelerator.type}"]
