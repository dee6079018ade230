"""Loads and saves for a while, from everywhere in every way, and looks for what is left behind.

`make soak` makes random rounds. A failure names the seed of its round, and `make soak SOAK_SEED=…`
begins with that round. `make test` always begins with the same one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from local_servers.azure_server import azure_process
from local_servers.redis_server import redis_server
from local_servers.s3_server import s3_server
from local_servers.web import nginx
from support.places import World
from support.process import resident

# A round that takes longer hangs.
LONGEST = 120
# How often these are measured, and how much they may grow after the first time.
MEASUREMENTS = 10
MOST = {"descriptors": 8, "threads": 8, "MiB": 256}


class LeftBehind(AssertionError):
    pass


def look(world: World) -> None:
    """Raises an error if a round left anything that has a name."""
    gc.collect()
    folder = str(world.folder)
    left = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of iterdir()
            left.append(str(link.readlink()))
    found = [name for name in left if name.startswith(folder)]
    known = {"source", "target", "fifo"}
    files = [path for path in world.folder.rglob("*") if path.is_file() or path.is_fifo()]
    found += [str(path) for path in files if path.name not in known]
    found += [str(path) for path in world.web.root.rglob("*") if path.is_file()]
    found += [f"s3://bucket/{name}" for name in world.s3.objects()]
    found += world.redis.sizes()
    found += os.listdir(tempfile.gettempdir())
    if found:
        raise LeftBehind(", ".join(found))


def measure() -> dict[str, int]:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "MiB": resident() >> 20,
    }


def play(world: World, given: argparse.Namespace, beat: int) -> int:
    """Plays rounds until the time is over. Returns the exit status."""
    # Only here, so that the process that starts the servers and forks has no threads.
    import tensorizer_ops
    from support.rounds import ROUNDS

    faulthandler.enable()
    tensorizer_ops.keys.add("soak", key=bytes(range(32)))
    begin = time.monotonic()
    count: Counter[str] = Counter()
    measured: list[dict[str, int]] = []
    top = world.folder
    seed = given.seed
    while time.monotonic() - begin < given.seconds:
        dice = random.Random(seed)
        round_ = dice.choices(list(ROUNDS), list(ROUNDS.values()))[0]
        os.write(beat, f"{seed} ({round_.__name__})\n".encode())
        world.folder = top / f"round-{seed}"
        world.folder.mkdir()
        try:
            round_(world, dice)
            look(world)
        except BaseException:
            traceback.print_exc()
            print(f"seed {seed} ({round_.__name__}) failed", file=sys.stderr, flush=True)
            return 1
        shutil.rmtree(world.folder)
        count[round_.__name__] += 1
        seed += 1
        if time.monotonic() - begin > given.seconds * (len(measured) + 1) / MEASUREMENTS:
            measured.append(measure())
    if left := world.s3.uploads():
        raise LeftBehind(f"unfinished uploads: {', '.join(left)}")
    print(f"{count.total()} rounds from seed {given.seed}: {dict(count)}")
    grown = 0
    for what, most in MOST.items():
        values = [found[what] for found in measured]
        print(f"{what}: {', '.join(map(str, values))}")
        if len(values) > 1 and min(values[len(values) // 2 :]) > values[0] + most:
            print(f"{what}: more and more (seed {given.seed})", file=sys.stderr)
            grown = 1
    return grown


def watch(pid: int, beats: int) -> int:
    """Waits for the process that plays, and kills it if a round hangs. Returns its status."""
    last = "none"
    while select.select([beats], [], [], LONGEST)[0]:
        beat = os.read(beats, 4096)
        if not beat:  # it has ended
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        last = beat.decode().split("\n")[-2]
    print(f"seed {last} takes longer than {LONGEST} s", file=sys.stderr)
    os.kill(pid, signal.SIGABRT)  # faulthandler shows where it hangs
    time.sleep(1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        for name in ("web", "s3", "redis", "temporary", "rounds"):
            (folder / name).mkdir()
        web = stack.enter_context(nginx(folder / "web"))
        (web.root / "put").mkdir()
        s3 = stack.enter_context(s3_server(folder / "s3"))
        redis = stack.enter_context(redis_server(folder / "redis"))
        azure = stack.enter_context(azure_process())
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "temporary")
        beats, beat = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(beats)
                status = play(World(folder / "rounds", web, s3, redis, azure), given, beat)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        os.close(beat)
        return watch(pid, beats)


if __name__ == "__main__":
    sys.exit(main())
