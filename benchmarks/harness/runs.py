"""Shared by all benchmarks: arguments, a description of the machine, and the JSON of results."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.harness.verdicts import Rows, Verdict

RESULTS = Path(__file__).parent.parent / "results"


def prepare_to_fork() -> None:
    """Keep this process single-threaded, so that forked processes start like new ones."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)


def parser(documentation: str | None, workloads: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ",".join(workloads)
    parser.add_argument("--quick", action="store_true", help="small files, one round: a smoke test")
    parser.add_argument("--workloads", default=names, help=f"some of {names}")
    parser.add_argument("--peers", default="", help="prefixes of rows, such as us,tensorizer")
    parser.add_argument("--repeat", type=int, help="rounds (3; 1 with --quick)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--directory", type=Path, help="the folder for temporary files")
    parser.add_argument("--programs", type=Path, default=RESULTS.parent.parent / "build")
    parser.add_argument("--json", type=Path, help="benchmarks/results/DATE-CPU.json if complete")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    return parser


def parse(parser: argparse.ArgumentParser, workloads: Sequence[str]) -> argparse.Namespace:
    arguments = parser.parse_args()
    arguments.workloads = arguments.workloads.split(",")
    if unknown := set(arguments.workloads) - set(workloads):
        parser.error(f"unknown workload {', '.join(sorted(unknown))}; there are {workloads}")
    arguments.only_some = bool(arguments.peers) or set(arguments.workloads) != set(workloads)
    arguments.peers = [name for name in arguments.peers.split(",") if name]
    arguments.repeat = arguments.repeat or (1 if arguments.quick else 3)
    return arguments


def _cpu_name() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found.group(1) if found else platform.machine()


def machine(directory: Path, threads: int, packages: Sequence[str]) -> dict[str, object]:
    mounts = [line.split()[:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    place = str(directory.resolve())
    _, _, file_system = max(
        (mount for mount in mounts if os.path.commonpath([place, mount[1]]) == mount[1]),
        key=lambda mount: len(mount[1]),
    )
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu_name(),
        "threads": threads,
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "file system": file_system,
        "load before": os.getloadavg()[0],
        "versions": versions,
    }


def path_of(about: dict[str, object], kind: str) -> Path:
    """Return where the results of a run belong."""
    slug = re.sub(r"[^a-z0-9]+", "-", str(about["cpu"]).lower()).strip("-")
    return RESULTS / f"{datetime.date.today().isoformat()}-{slug}{'-' * bool(kind)}{kind}.json"


def leave(
    arguments: argparse.Namespace,
    about: dict[str, object],
    results: dict[str, Rows],
    verdicts: Sequence[Verdict],
    kind: str = "",
    **more: object,
) -> None:
    """Write the JSON of a run if the run is complete or --json is given."""
    path: Path | None = arguments.json
    if path is None and not (arguments.quick or arguments.only_some):
        path = path_of(about, kind)
    if path is None:
        return
    content = {
        "machine": about,
        "results": {
            workload: {name: asdict(row) for name, row in rows.items()}
            for workload, rows in results.items()
        },
        **more,
        "targets": [asdict(verdict) for verdict in verdicts],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"\n{path}")
