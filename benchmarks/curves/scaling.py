"""Compares speeds by the number of connections to a server, and by the number of threads.

    python -m benchmarks.curves.scaling [--quick] [--workloads slow,threads] [--rounds 3]

512 MiB in tensors of 8 MiB. Every loaded or saved byte is compared with the original, outside of
the timing.

  slow      from an nginx that gives each connection 40 MB/s
  fast      from an nginx without a limit, beside bare libcurl with as many connections
  threads   a local file in the page cache: loaded by copy, loaded with CRC32 and SHA-256 verified,
            and saved with both
  encrypted such a file, encrypted; tensorizer's num_readers counts as threads

tensorizer's num_readers counts as connections. The servers run on the same CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness.compare import Scene, compare
from benchmarks.harness.contenders import TINY, Contender, Setting
from benchmarks.harness.libraries import KEY, KEYED, Load, Save, ops_load, ops_save, tensorizer_load
from benchmarks.harness.measure import saving
from benchmarks.harness.results import LIMIT, US
from benchmarks.harness.servers import web_server
from benchmarks.harness.workloads import of_8_mib

CONNECTIONS = (1, 2, 4, 8, 16, 32)
THREADS = (1, 2, 4, 8)
BYTES_PER_SECOND = 40_000_000
Loads = dict[str, Callable[[int], Load]]  # by the number of threads


def write(setting: Setting, folder: Path, save: Save) -> tuple[Path, Path]:
    """Write a file of the workload, and a tiny one."""
    tiny = setting.write(save, folder / "tiny.tensors", TINY)
    return setting.write(save, folder / "model.tensors"), tiny


def servers(setting: Setting, bytes_per_second: int | None) -> Iterator[list[Contender]]:
    with web_server(setting.directory, bytes_per_second=bytes_per_second) as web:
        file, tiny = write(setting, web.root, ops_save())
        url = web.url(file.name)
        found = []
        for n in CONNECTIONS:
            loads = {
                f"{US}, {n}": ops_load(options={"connections": str(n)}),
                f"tensorizer, {n}": tensorizer_load(n),
            }
            for name, load in loads.items():
                found.append(setting.loads(name, load, url, web.url(tiny.name), file))
            if bytes_per_second is None:
                found.append(setting.bare_load(f"{LIMIT}, bare libcurl, {n}", n, url, file))
        yield found


def of_threads(
    setting: Setting, save: Callable[..., Save], load: Load, loads: Loads
) -> Iterator[list[Contender]]:
    """Yield loads of a local file, and saves of another, by the number of threads."""
    folder = setting.directory
    file, tiny = write(setting, folder, save())
    found = []
    for n in THREADS:
        for name, load_with in loads.items():
            contender = setting.loads(f"{name}, {n}", load_with(n), str(file), str(tiny), file)
            found.append(contender)
        warm_up = partial(save(), TINY, str(tiny))
        task = saving(save(threads=n), load, setting.state, folder / "saved.tensors", warm_up)
        found.append(setting.performs(f"{US}, saved, {n}", task))
    yield found


def threads(setting: Setting) -> Iterator[list[Contender]]:
    loads: Loads = {
        f"{US}, copy": lambda n: ops_load(copy=True, threads=n),
        f"{US}, verified": lambda n: ops_load(copy=True, verify="all", threads=n),
    }
    return of_threads(setting, ops_save, ops_load(copy=True), loads)


def encrypted(setting: Setting) -> Iterator[list[Contender]]:
    loads: Loads = {
        f"{US}, loaded": lambda n: ops_load(options=KEYED, threads=n),
        "tensorizer, loaded": lambda n: tensorizer_load(n, key=KEY),
    }
    return of_threads(setting, partial(ops_save, options=KEYED), ops_load(options=KEYED), loads)


def main() -> None:
    work = of_8_mib(512)
    slow, fast = (partial(servers, bytes_per_second=rate) for rate in (BYTES_PER_SECOND, None))
    scenes = {
        "slow": Scene("Connections of 40 MB/s each", work, slow),
        "fast": Scene("Connections to nginx on the same CPUs", work, fast),
        "threads": Scene("Threads", work, threads),
        "encrypted": Scene("Threads, encrypted", work, encrypted),
    }
    compare(__doc__, "scaling", scenes)


if __name__ == "__main__":
    main()
