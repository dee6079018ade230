"""Compares loads and saves with other libraries and with the machine's limit, in one run.

    python -m benchmarks.local.run [--quick] [--workloads large,small] [--peers us,limit,tensorizer]

A round measures every library once, so that other load on the machine affects all of them alike.
Disturbances make a measurement slower, never faster, so targets compare the best rounds. Every
library uses the CPUs that this process may use: `taskset -c 0,1` measures with two.

Nothing is synced to the disk: a save ends when the kernel has the bytes. Every loaded or saved byte
is compared with the original, outside of the timing. A load ends when its values are in memory: if
they are mapped, one byte of every page is read. GB are 10^9 bytes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import runs
from benchmarks.harness import tables as report
from benchmarks.harness.libraries import US, why_not
from benchmarks.harness.memory import Failure, Reserve
from benchmarks.harness.targets import judge
from benchmarks.harness.verdicts import Rows
from benchmarks.harness.workloads import WORKLOADS
from benchmarks.local.rounds import Bench, Settings

PACKAGES = (
    *("tensorizer_ops", "torch", "tensorizer", "safetensors", "flashpack"),
    *("runai-model-streamer", "fastsafetensors"),
)
IMPORT = """
import time, torch
start = time.perf_counter()
import tensorizer_ops
print(time.perf_counter() - start)
"""


def import_seconds(count: int) -> float:
    """Return the time of `import tensorizer_ops` in a new interpreter that has imported torch."""
    seconds = []
    for _ in range(count + 1):  # the first one writes .pyc files and fills the page cache
        command = [sys.executable, "-c", IMPORT]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failure(done.stderr.strip().splitlines()[-1])
        seconds.append(float(done.stdout))
    return statistics.median(seconds[1:])


def main() -> None:
    names = list(WORKLOADS)
    arguments = runs.parse(runs.parser(__doc__, names), names)
    runs.prepare_to_fork()
    imported = None
    if (not arguments.peers or "us" in arguments.peers) and not why_not(US.module):
        imported = import_seconds(1 if arguments.quick else 10)
    results: dict[str, Rows] = {}
    chosen = [WORKLOADS[name] for name in arguments.workloads]
    reserve = Reserve(2 * max(workload.bytes(arguments.quick) for workload in chosen))
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=arguments.directory) as directory:
        about = runs.machine(Path(directory), arguments.threads, PACKAGES)
        for workload in chosen:
            place = Path(directory) / workload.name
            place.mkdir()
            settings = Settings(
                quick=arguments.quick,
                repeat=arguments.repeat,
                threads=arguments.threads,
                only=arguments.peers,
                programs=arguments.programs,
                directory=place,
                reserve=reserve,
            )
            bench = Bench(workload, settings)
            bench.run()
            results[workload.name] = bench.rows
            if sys.stderr.isatty():
                print("\r\033[K", end="", file=sys.stderr)
            print(report.results(workload.title, bench.rows, arguments.markdown), end="\n\n")
            sys.stdout.flush()
            del bench  # frees its tensors before the next ones are made
            for file in place.iterdir():
                file.unlink()
    verdicts = judge(results, imported)
    print(report.verdicts(verdicts, arguments.markdown))
    runs.leave(arguments, about, results, verdicts, **{"import seconds": imported})


if __name__ == "__main__":
    main()
