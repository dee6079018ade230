"""Kills saves of models in several files before any of their system calls, or stops them there
while others load and save, and checks what is left.

Runs in a process with preload.c.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

import tensorizer_ops
from support.process import fork, wait

# How many files each save before has, then the one that is killed, and options of that.
CASES: dict[str, tuple[list[int], int, dict[str, str]]] = {
    "the same count": ([3], 3, {}),
    "once more": ([3, 3], 3, {}),
    "more files, fsync": ([2], 3, {"fsync": "true"}),
    "fewer files": ([3], 2, {}),
    "the first save": ([], 2, {"fsync": "true"}),
    "of one file": ([1], 2, {}),
    "to one file": ([3], 1, {}),
    "from one and several": ([3], 2, {}),
    "to one file from one and several": ([3], 1, {}),
    "a linked index": ([2], 2, {}),
    "after a save that was killed": ([2], 3, {}),
}
# How many files a save before has, those of one that is stopped, and those of another meanwhile.
BESIDE: dict[str, tuple[list[int], int, int]] = {
    "two first saves": ([], 2, 3),
    "two saves over an older one": ([3], 2, 3),
    "several files beside one": ([1], 3, 1),
    "one file beside several": ([3], 1, 2),
    "one file beside the first of several": ([], 1, 2),
    "several files beside the first of one": ([], 2, 1),
}
# How many files a save before has, and those of a save during a load.
LOADED: dict[str, tuple[list[int], int]] = {
    "several files in place of one": ([1], 2),
    "one file in place of several": ([2], 1),
    "several files in place of several": ([2], 2),
}
# They have names like those of the model, and are not its files.
OTHERS = ("model-00009-of-00009.safetensors", "model-abcd0123-00001-of-00002.safetensors")
# The values of a save of the model that is killed or stopped, of another one meanwhile, and of one
# without max_shard_size before.
NEW, OTHER, PLAIN = 100, 200, 50
NEVER = 1 << 30

Found = tuple[int, int] | None
Point = TypeVar("Point")


def save(folder: Path, value: int, files: int, options: dict[str, str]) -> None:
    model = {f"t{i}": torch.full((64,), value) for i in range(2 * files)}  # of 512 bytes
    most = {"max_shard_size": "1024" if files > 1 else "1000000"}
    tensorizer_ops.save(folder / "model.safetensors", model, threads=1, options=most | options)


def run_until(point: int, folder: Path, job: Callable[[], object]) -> int | None:
    """Runs a job in a fork, and kills it before a call. Returns how many it made if it was not."""
    calls = folder.parent / "calls"
    calls.unlink(missing_ok=True)

    def child() -> None:
        os.environ["KILL"] = str(point)
        job()
        del os.environ["KILL"]
        calls.write_text(str(ctypes.c_long.in_dll(ctypes.CDLL(None), "calls").value))

    status = wait(fork(child))
    assert status in (0, -signal.SIGKILL), status
    return int(calls.read_text()) if status == 0 else None


def killed(folder: Path, point: int, files: int, options: dict[str, str]) -> int | None:
    return run_until(point, folder, lambda: save(folder, NEW, files, options))


def begin(folder: Path, older: list[int], others: tuple[str, ...] = OTHERS) -> None:
    folder.mkdir(parents=True)
    for name in others:
        (folder / name).write_text("of a user")
    for value, count in enumerate(older):
        save(folder, value, count, {})


def prepare(folder: Path, case: str) -> None:
    older, files, options = CASES[case]
    # Without an index they would be models of the folder.
    begin(folder, older, () if 1 in (*older, files) else OTHERS)
    if case.endswith("from one and several"):
        tensorizer_ops.save(folder / "model.safetensors", {"t0": torch.full((64,), PLAIN)})
    if case == "a linked index":
        index = folder / "model.safetensors.index.json"
        index.rename(folder.parent / "blob")
        index.symlink_to("../blob")
    if case == "after a save that was killed":
        killed(folder, between_links(folder.parent), files, options)
        assert len(list(folder.glob("*-of-00003.safetensors"))) == 2


@cache
def between_links(work: Path) -> int:
    """Returns the number of a call before which two of three files are there."""
    low, high = 1, 1000
    while True:
        point, folder = (low + high) // 2, work / "searched"
        begin(folder, [2])
        killed(folder, point, 3, {})
        there = len(list(folder.glob("*-of-00003.safetensors")))
        shutil.rmtree(folder)
        if there == 2:
            return point
        low, high = (point, high) if there < 2 else (low, point)


def whole(uri: Path) -> Found:
    """Returns the value of all tensors of a model and how many there are; null if there is none."""
    return found_by(lambda: tensorizer_ops.load(uri))


def found_by(load: Callable[[], dict[str, torch.Tensor]]) -> Found:
    """Returns the same of what is loaded. Raises what the load does."""
    try:
        loaded = load()
    except FileNotFoundError:
        return None
    values = {int(value) for tensor in loaded.values() for value in tensor.unique()}
    assert len(values) == 1, values
    return values.pop(), len(loaded)


def models(folder: Path) -> list[Found]:
    """Returns the model in one file and the one in several."""
    return [whole(folder / f"model.safetensors{end}") for end in ("", ".index.json")]


def check(folder: Path, older: list[Found], files: int) -> None:
    names = {path.name for path in folder.iterdir()}
    found, new = models(folder), (NEW, 2 * files)
    assert {*found} <= {None, *older, new}, found
    assert any(found) or not any(older), "neither model is there"
    if all(found) and all(older):
        with suppress(ValueError):
            raise AssertionError(f"{whole(folder)} may be older than another one")
    elif any(found):
        assert whole(folder) in (*older, new)
    save(folder, 1, 2, {})
    assert whole(folder) == (1, 4)
    index = {"model.safetensors.index.json"}
    left = {path.name for path in folder.iterdir()} - index - set(OTHERS)
    # A new index has such a name before it replaces the older one.
    left = {name for name in left if not name.startswith(".tensorizer-")}
    assert len(left) == 2 and all(name.endswith("-of-00002.safetensors") for name in left), left
    assert all((folder / name).read_text() == "of a user" for name in names & set(OTHERS))


def stops(pid: int) -> bool:
    """Waits until a fork has ended or is stopped, and returns whether it is stopped."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
    assert ended is not None
    return ended.si_code == os.CLD_STOPPED


def save_beside(folder: Path, point: int, older: list[int], files: int, others: int) -> None:
    """Stops a save before a call, lets another one go as far as it can, and lets both end."""
    begin(folder, older, ())
    before = whole(folder) if older else None

    def stopped() -> None:
        os.environ["STOP"] = str(point)
        save(folder, NEW, files, {})

    def beside() -> None:
        os.environ["STOP_AT_LOCK"] = ".model.saving"
        save(folder, OTHER, others, {})

    saves = [fork(stopped)]
    try:
        assert stops(saves[0])
        if before:
            assert whole(folder) in (before, (NEW, 2 * files))
        saves.append(fork(beside))
        # It has ended, or it waits for the first one.
        waits = stops(saves[1])
        assert not before or whole(folder)
    finally:
        for pid in saves:
            os.kill(pid, signal.SIGCONT)
        ends = [wait(pid) for pid in saves]
    assert ends == [0, 0], waits
    check_one(folder, {(NEW, 2 * files), (OTHER, 2 * others)})


def check_one(folder: Path, saved: set[Found]) -> None:
    """Checks that a folder has exactly one whole model, and nothing else."""
    one, several = models(folder)
    assert None in (one, several) and whole(folder) == (one or several) in saved
    names = {path.name for path in folder.iterdir()}
    if one:
        assert names == {"model.safetensors"}
    else:
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        assert names == {"model.safetensors.index.json", *index["weight_map"].values()}


def load_beside(folder: Path, point: int, load_point: int, older: list[int], files: int) -> None:
    """Stops a save before a call, and a load too, lets the save end, and then the load."""
    begin(folder, older, ())
    expected = (whole(folder), (NEW, 2 * files))

    def stopped() -> None:
        os.environ["STOP"] = str(point)
        save(folder, NEW, files, {})

    def load() -> None:
        os.environ["STOP"] = str(load_point)
        found = whole(folder)
        assert found in expected, found

    pids = [fork(stopped)]
    try:
        assert stops(pids[0])
        pids.append(fork(load))
        stops(pids[1])
    finally:
        ends = []
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
            ends.append(wait(pid))
    assert ends == [0, 0]


def changes(folder: Path, older: list[int], files: int) -> Iterator[tuple[int, int]]:
    """Yields the calls of a save before which it has changed which files there are, each with how
    many calls a load has then."""
    seen: set[str] = set()
    for point in range(1, NEVER):
        begin(folder, older, ())
        ended = killed(folder, point, files, {}) is not None
        names = re.sub("[0-9a-f]{8}", "", str(sorted(path.name for path in folder.iterdir())))
        if seen and names not in seen and not ended:
            yield point, run_until(NEVER, folder, lambda: whole(folder)) or 0
        seen.add(names)
        shutil.rmtree(folder)
        if ended:
            return


def run_loads(work: Path, wanted: str) -> int:
    """As run(), for loads that are stopped while a save goes on."""
    begin(work / "first", [2])
    whole(work / "first")
    points = [
        (case, point, load_point)
        for case, (older, files) in LOADED.items()
        for point, calls in changes(work / "model", older, files)
        for load_point in range(1, calls + 1)
    ]
    for case, point, load_point in chosen(points, wanted):
        try:
            load_beside(work / "model", point, load_point, *LOADED[case])
        except BaseException as error:
            error.add_note(f"{case}, stopped before call {point}, the load before {load_point}")
            raise
        shutil.rmtree(work / "model")
    return len(points)


def chosen(points: list[Point], wanted: str) -> list[Point]:
    return points if wanted == "all" else random.Random(wanted).sample(points, int(wanted))


def run_beside(work: Path, wanted: str) -> int:
    """As run(), for saves that are stopped while another one of the same name goes on."""
    # What a process opens only once is not counted.
    begin(work / "first", [2])
    whole(work / "first")
    points = []
    for case, (older, files, _) in BESIDE.items():
        begin(work / "model", older, ())
        calls = killed(work / "model", NEVER, files, {})
        assert calls is not None
        points += [(case, point) for point in range(1, calls + 1)]
        shutil.rmtree(work / "model")
    for case, point in chosen(points, wanted):
        try:
            save_beside(work / "model", point, *BESIDE[case])
        except BaseException as error:
            error.add_note(f"{case}, stopped before call {point}")
            raise
        shutil.rmtree(work / "model")
    return len(points)


def run(work: Path, wanted: str) -> int:
    """Tries so many calls, chosen at random, or "all". Returns how many that were."""
    points = []
    for case, (_, files, options) in CASES.items():
        prepare(work / "model", case)
        calls = killed(work / "model", NEVER, files, options)
        assert calls is not None and calls > 20
        points += [(case, point) for point in range(1, calls + 1)]
        shutil.rmtree(work / "model")
    points = chosen(points, wanted)
    for case, point in points:
        _, files, options = CASES[case]
        prepare(work / "model", case)
        older = models(work / "model")
        assert killed(work / "model", point, files, options) is None, (case, point)
        try:
            check(work / "model", older, files)
        except BaseException as error:
            error.add_note(f"{case}, killed before call {point}")
            raise
        shutil.rmtree(work / "model")
    return len(points)
