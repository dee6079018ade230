"""Measures loads and saves beside their peers and beside the machine's limit, in one run.

    python benchmarks/run.py [--quick] [--workloads large,small] [--peers us,limit,tensorizer]

All figures of a workload are taken in rounds: each round measures everyone once, so that whatever
else the machine does hits everyone alike. What disturbs a measurement makes it slower, never
faster, so a target is judged by everyone's best round. Everyone gets the CPUs that this process may
use: `taskset -c 0,1` gives figures for two.

Nothing is synced to the disk: a save ends when the kernel has the bytes, for everyone. Every loaded
or saved byte is compared with the original, outside of the timing. A load ends when its values are
in memory: where they are mapped, one byte of every page is read. GB are 10^9 bytes.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

# Before anything imports it: threads that exist already are missing in a forked process.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch

import report
from memory import Failure, Reserve
from peers import US, why_not
from rounds import Bench, Settings
from targets import Rows, Verdict, judge
from workloads import WORKLOADS

HERE = Path(__file__).parent
PACKAGES = ("tensorizer_ops", "torch", "tensorizer", "safetensors", "flashpack")
IMPORT = """
import time, torch
start = time.perf_counter()
import tensorizer_ops
print(time.perf_counter() - start)
"""


def import_seconds(count: int) -> float:
    """What `import tensorizer_ops` takes in a new interpreter that has imported torch."""
    seconds = []
    for _ in range(count + 1):  # the first one compiles and brings the files into memory
        command = [sys.executable, "-c", IMPORT]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failure(done.stderr.strip().splitlines()[-1])
        seconds.append(float(done.stdout))
    return statistics.median(seconds[1:])


def cpu_name() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found.group(1) if found else platform.machine()


def machine(directory: Path, threads: int) -> dict[str, object]:
    mounts = [line.split()[:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    place = str(directory.resolve())
    _, _, file_system = max(
        (mount for mount in mounts if os.path.commonpath([place, mount[1]]) == mount[1]),
        key=lambda mount: len(mount[1]),
    )
    versions = {}
    for package in (*PACKAGES, "runai-model-streamer"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "threads": threads,
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "file system": file_system,
        "load before": os.getloadavg()[0],
        "versions": versions,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ",".join(WORKLOADS)
    parser.add_argument("--quick", action="store_true", help="small files, one round: a smoke test")
    parser.add_argument("--workloads", default=names, help=f"of {names}")
    parser.add_argument("--peers", default="", help="what names start with: us,limit,torch.load")
    parser.add_argument("--repeat", type=int, help="rounds (3; 1 with --quick)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--directory", type=Path, help="where files go while this runs")
    parser.add_argument("--limit", type=Path, default=HERE.parent / "build" / "limit")
    parser.add_argument("--json", type=Path, help="benchmarks/results/DATE-CPU.json, for all of it")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    arguments = parser.parse_args()
    arguments.workloads = arguments.workloads.split(",")
    if unknown := set(arguments.workloads) - WORKLOADS.keys():
        parser.error(f"unknown workload {', '.join(sorted(unknown))}; there are {names}")
    arguments.only_some = bool(arguments.peers) or set(arguments.workloads) != WORKLOADS.keys()
    arguments.peers = [name for name in arguments.peers.split(",") if name]
    arguments.repeat = arguments.repeat or (1 if arguments.quick else 3)
    return arguments


def write_json(
    path: Path,
    about: dict[str, object],
    results: dict[str, Rows],
    imported: float | None,
    verdicts: Sequence[Verdict],
) -> None:
    content = {
        "machine": about,
        "results": {
            workload: {name: asdict(row) for name, row in rows.items()}
            for workload, rows in results.items()
        },
        "import seconds": imported,
        "targets": [asdict(verdict) for verdict in verdicts],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    arguments = parse()
    # Without threads in this process, forked ones start as if they were new.
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    imported = None
    if (not arguments.peers or "us" in arguments.peers) and why_not(US) is None:
        imported = import_seconds(1 if arguments.quick else 10)
    results: dict[str, Rows] = {}
    chosen = [WORKLOADS[name] for name in arguments.workloads]
    reserve = Reserve(2 * max(workload.bytes(arguments.quick) for workload in chosen))
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=arguments.directory) as directory:
        about = machine(Path(directory), arguments.threads)
        for workload in chosen:
            place = Path(directory) / workload.name
            place.mkdir()
            settings = Settings(
                quick=arguments.quick,
                repeat=arguments.repeat,
                threads=arguments.threads,
                only=arguments.peers,
                program=arguments.limit,
                directory=place,
                reserve=reserve,
            )
            bench = Bench(workload, settings)
            bench.run()
            results[workload.name] = bench.rows
            if sys.stderr.isatty():
                print("\r\033[K", end="", file=sys.stderr)
            print(report.results(workload, bench.rows, arguments.markdown), end="\n\n")
            sys.stdout.flush()
            del bench  # its tensors, before the next ones are made
            for file in place.iterdir():
                file.unlink()
    verdicts = judge(results, imported)
    print(report.verdicts(verdicts, arguments.markdown))
    path = arguments.json
    if path is None and not (arguments.quick or arguments.only_some):
        slug = re.sub(r"[^a-z0-9]+", "-", str(about["cpu"]).lower()).strip("-")
        path = HERE / "results" / f"{datetime.date.today().isoformat()}-{slug}.json"
    if path is not None:
        write_json(path, about, results, imported, verdicts)
        print(f"\n{path}")


if __name__ == "__main__":
    main()
